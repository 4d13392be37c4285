//! Counts that the user has set to zero while the process continues to count.

use gmon::Arc;

use crate::profile::collect::Collected;
use crate::program::planned::Planned;
use crate::sampling::histogram::Histogram;

/// What had been counted when the counts were last set to zero. The counters themselves belong to the process
/// and are not changed.
#[derive(Debug, Default)]
pub(crate) struct Baseline {
    pub(crate) arcs: Vec<Arc>,
    /// The values of the basic-block counters.
    pub(crate) counters: Vec<u64>,
    /// The samples that the agent has taken.
    pub(crate) samples: Option<Histogram>,
    pub(crate) lost_calls: u64,
    pub(crate) bare_calls: u64,
}

impl Baseline {
    /// Subtracts this baseline, which leaves what was counted since.
    pub(crate) fn subtract(&self, collected: &mut Collected, histogram: &mut Histogram) {
        let mut before = self.arcs.iter().peekable();
        for arc in &mut collected.arcs {
            // Both lists are sorted.
            while before.next_if(|old| (old.from, old.to) < (arc.from, arc.to)).is_some() {}
            if let Some(old) = before.next_if(|old| (old.from, old.to) == (arc.from, arc.to)) {
                arc.count = arc.count.saturating_sub(old.count);
            }
        }
        collected.arcs.retain(|arc| arc.count > 0);
        for (count, before) in collected.counters.iter_mut().zip(&self.counters) {
            *count = count.saturating_sub(*before);
        }
        collected.lost_calls = collected.lost_calls.saturating_sub(self.lost_calls);
        collected.bare_calls = collected.bare_calls.saturating_sub(self.bare_calls);
        if let Some(samples) = &self.samples {
            histogram.subtract(samples);
        }
    }

    /// Returns the bytes of the file beside the counters that `--recover` reads.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let arcs = self.arcs.iter().flat_map(|arc| [arc.from, arc.to, arc.count]);
        let head = [self.lost_calls, self.bare_calls, self.arcs.len() as u64, self.counters.len() as u64];
        let counters = self.counters.iter().copied();
        let words = head.into_iter().chain(arcs).chain(counters);
        let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        bytes.extend(self.samples.iter().flat_map(Histogram::encode));
        bytes
    }

    /// Decodes the bytes that [`Baseline::encode`] has returned. Returns `None` if they are damaged.
    pub(crate) fn decode(bytes: &[u8], planned: &Planned) -> Option<Baseline> {
        let word = |n: usize| Some(u64::from_le_bytes(*bytes.get(8 * n..)?.first_chunk()?));
        // The number of entries is bounded by the number of bytes.
        let number = |n| usize::try_from(word(n)?).ok().filter(|number| *number <= bytes.len() / 8);
        let (count, blocks) = (number(2)?, number(3)?);
        let arc =
            |n: usize| Some(Arc { from: word(4 + 3 * n)?, to: word(5 + 3 * n)?, count: word(6 + 3 * n)? });
        let arcs = (0..count).map(arc).collect::<Option<Vec<Arc>>>()?;
        let first = 4 + 3 * count;
        let counters = (0..blocks).map(|n| word(first + n)).collect::<Option<Vec<u64>>>()?;
        let mut samples = Histogram::new(planned.shape);
        samples.add_encoded(bytes.get(8 * (first + blocks)..)?);
        let (lost_calls, bare_calls) = (word(0)?, word(1)?);
        Some(Baseline { arcs, counters, samples: Some(samples), lost_calls, bare_calls })
    }
}
