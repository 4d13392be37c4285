//! Counts that the user has set to zero while the process continues to count.

use crate::profile::collect::Account;
use crate::profile::model::{Arc, ModuleIndex, Place, Profile};
use crate::program::library::Libraries;
use crate::program::planned::Planned;
use crate::sampling::histogram::Histogram;

/// What had been counted when the counts were last set to zero. The counters themselves belong to the process
/// and are not changed.
pub(crate) struct Baseline {
    /// The counts. Of the samples, only those that the agent has taken.
    pub(crate) profile: Profile,
    pub(crate) lost_calls: u64,
    pub(crate) bare_calls: u64,
}

impl Baseline {
    /// Subtracts this baseline, which leaves what was counted since.
    pub(crate) fn subtract(&self, profile: &mut Profile, account: &mut Account) {
        profile.subtract(&self.profile);
        account.lost_calls = account.lost_calls.saturating_sub(self.lost_calls);
        account.bare_calls = account.bare_calls.saturating_sub(self.bare_calls);
    }

    /// Returns the bytes of the file beside the counters that `--recover` reads.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Profile { modules, arcs, own, .. } = &self.profile;
        let mut words = vec![self.lost_calls, self.bare_calls, modules.len() as u64];
        // The program is not a library.
        words.extend(
            modules.iter().map(|module| module.library.map_or(0, |library| 1 + u64::from(library.number))),
        );
        words.push(arcs.len() as u64);
        let end = |place: Place| [u64::from(place.module), place.address];
        words.extend(
            arcs.iter().flat_map(|arc| [end(arc.from), end(arc.to)].concat().into_iter().chain([arc.count])),
        );
        words.push(own.len() as u64);
        words.extend(own.iter().flat_map(|arc| [arc.from, arc.to, arc.count]));
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        for module in modules {
            let samples = module.samples.encode();
            let values = &module.counters.values;
            let head = [values.len() as u64, (samples.len() / 8) as u64];
            bytes.extend(head.iter().chain(values).flat_map(|word| word.to_le_bytes()));
            bytes.extend(samples);
        }
        bytes
    }

    /// Decodes the bytes that [`Baseline::encode`] has returned for a process of this program, which had loaded these
    /// libraries. Returns `None` if they are damaged.
    pub(crate) fn decode(
        bytes: &[u8],
        program: &'static Planned<'static, 'static>,
        libraries: &Libraries,
    ) -> Option<Baseline> {
        let mut words = Words(bytes);
        let (lost_calls, bare_calls, modules) = (words.next()?, words.next()?, words.len()?);
        let mut profile = Profile::of_program(program, 0);
        for _ in 0..modules {
            if let Some(number) = words.next()?.checked_sub(1) {
                profile.module_of(libraries.get(u32::try_from(number).ok()?)?);
            }
        }
        for _ in 0..words.len()? {
            let (from, to, count) = (words.place()?, words.place()?, words.next()?);
            profile.arcs.push(Arc { from, to, count });
        }
        for _ in 0..words.len()? {
            let (from, to, count) = (words.next()?, words.next()?, words.next()?);
            profile.own.push(gmon::Arc { from, to, count });
        }
        for module in &mut profile.modules {
            let (values, samples) = (words.len()?, words.len()?);
            module.counters.values = (0..values).map(|_| words.next()).collect::<Option<_>>()?;
            module.samples = Histogram::new(module.program.shape);
            module.samples.add_encoded(words.take(samples)?);
        }
        Some(Baseline { profile, lost_calls, bare_calls })
    }
}

/// The rest of an encoded baseline.
struct Words<'b>(&'b [u8]);

impl<'b> Words<'b> {
    fn next(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    /// Returns a number of words, of which there cannot be more than there are left.
    fn len(&mut self) -> Option<usize> {
        let len = usize::try_from(self.next()?).ok()?;
        (len <= self.0.len() / 8).then_some(len)
    }

    fn place(&mut self) -> Option<Place> {
        Some(Place { module: ModuleIndex::try_from(self.next()?).ok()?, address: self.next()? })
    }

    /// Returns the bytes of the next `len` words.
    fn take(&mut self, len: usize) -> Option<&'b [u8]> {
        let (words, rest) = self.0.split_at_checked(8 * len)?;
        self.0 = rest;
        Some(words)
    }
}
