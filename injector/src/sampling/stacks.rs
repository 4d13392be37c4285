//! The stacks of samples, until a process has ended and it is known what its calls were.
//!
//! The kernel's copies of stacks enter. Of each, the words are kept that may be return addresses or saved frame pointers, which are
//! a tenth of all. Of a long run, only some stacks are kept, evenly.

use crate::sampling::maps::Maps;
use crate::sampling::records::{Dump, Python};

/// The bytes of the stacks that are kept of all processes that run at a time, and of one at least and at most.
const BYTES: usize = 256 << 20;
const BYTES_LEAST: usize = 1 << 20;
const BYTES_MOST: usize = 16 << 20;
/// Two mappings of code with less between them are in one range.
const GAP: u64 = 16 << 20;
/// How far above the stack pointer a saved frame pointer may point.
const FRAMES: u64 = 1 << 20;

/// The stacks of the samples of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stacks {
    kept: Vec<Stack>,
    /// Each of `1 << thinned` samples is kept.
    thinned: u32,
    /// The number of samples.
    seen: u64,
    bytes: usize,
    /// What was mapped when the newest sample was taken.
    pub(crate) maps: Maps,
    /// The ranges of addresses that contain its code.
    code: Vec<(u64, u64)>,
}

/// A stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stack {
    /// The time of the sample.
    pub(crate) time: u64,
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    pub(crate) bp: u64,
    /// The address behind the part that was copied.
    end: u64,
    /// Where the words are: multiples of eight bytes above `sp`, sorted.
    places: Box<[u16]>,
    words: Box<[u64]>,
    /// The Python functions that the thread executed.
    pub(crate) python: Python,
}

impl Stack {
    /// Returns the word at an address, or 0 if it was copied and was neither of the two. Returns `None` if it was not copied.
    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.sp).filter(|offset| offset % 8 == 0 && address < self.end)?;
        let place = u16::try_from(offset / 8).ok()?;
        let word = self.places.binary_search(&place).ok().and_then(|index| self.words.get(index));
        Some(word.copied().unwrap_or(0))
    }

    /// Whether an address is above the part that was copied.
    pub(crate) fn is_above(&self, address: u64) -> bool {
        address >= self.end
    }

    /// Returns the words from an address on, each with its address.
    pub(crate) fn words_from(&self, address: u64) -> impl Iterator<Item = (u64, u64)> {
        let first = address.saturating_sub(self.sp).div_ceil(8);
        let first = self.places.partition_point(|&place| u64::from(place) < first);
        let places = self.places.get(first..).unwrap_or_default();
        let words = self.words.get(first..).unwrap_or_default();
        places.iter().zip(words).map(|(&place, &word)| (self.sp.wrapping_add(u64::from(place) * 8), word))
    }

    fn bytes(&self) -> usize {
        let python = match &self.python {
            Python::None | Python::Unknown => 0,
            Python::Frames(frames) => frames.bytes(),
        };
        size_of::<Stack>() + self.places.len() * (size_of::<u16>() + size_of::<u64>()) + python
    }
}

impl Stacks {
    /// Adds the stack of a sample of a process, one of so many, that has mapped this.
    pub(crate) fn add(&mut self, dump: &Dump, maps: &Maps, processes: usize) {
        self.seen += 1;
        if self.seen & ((1 << self.thinned) - 1) != 0 {
            return;
        }
        if self.maps.version() != maps.version() || self.code.is_empty() {
            self.maps = maps.clone();
            self.code = ranges(maps);
        }
        let stack = self.compact(dump);
        self.bytes += stack.bytes();
        self.kept.push(stack);
        let most = (BYTES / processes.max(1)).clamp(BYTES_LEAST, BYTES_MOST);
        if self.bytes > most && self.thinned < 62 {
            self.thin();
        }
    }

    /// Drops every other stack.
    fn thin(&mut self) {
        let mut index = 0;
        self.kept.retain(|_| {
            index += 1;
            index % 2 == 0
        });
        self.thinned += 1;
        self.bytes = self.kept.iter().map(Stack::bytes).sum();
    }

    /// Keeps the words that may be return addresses or saved frame pointers.
    fn compact(&self, dump: &Dump) -> Stack {
        let is_frame = |word: u64| word.wrapping_sub(dump.sp) < FRAMES;
        let is_code = |word: u64| self.code.iter().any(|&(lo, hi)| word.wrapping_sub(lo) <= hi - lo);
        let kept = dump.words.iter().filter(|&&(_, word)| is_frame(word) || is_code(word));
        let (places, words): (Vec<u16>, Vec<u64>) = kept.copied().unzip();
        let Dump { time, pc, sp, bp, .. } = *dump;
        let end = sp.saturating_add(dump.len);
        let python = dump.python.clone();
        Stack { time, pc, sp, bp, end, places: places.into(), words: words.into(), python }
    }

    /// Returns the stacks that were kept.
    pub(crate) fn kept(&self) -> &[Stack] {
        &self.kept
    }

    /// Returns for how many samples one of them stands.
    pub(crate) fn weight(&self) -> u64 {
        1 << self.thinned
    }
}

/// Returns ranges of addresses that contain all code that is mapped.
fn ranges(maps: &Maps) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for mapped in maps.iter() {
        match ranges.last_mut() {
            Some((_, end)) if mapped.start.saturating_sub(*end) < GAP => *end = mapped.end.max(*end),
            _ => ranges.push((mapped.start, mapped.end)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::maps::Mapped;

    fn maps() -> Maps {
        let mut maps = Maps::default();
        for start in [0x40_0000, 0x7000_0000_0000, 0x7000_0010_0000] {
            maps.add(Mapped { start, end: start + 0x1000, offset: 0, file: "a".into() });
        }
        maps
    }

    fn dump(words: &[u64]) -> Dump {
        let len = words.len() as u64 * 8;
        Dump {
            time: 1,
            pc: 0x40_0010,
            sp: 0x8000_0000,
            bp: 0x8000_0040,
            len,
            words: (0..).zip(words.iter().copied()).collect(),
            python: Python::None,
        }
    }

    #[test]
    fn words_that_may_matter_are_kept() {
        let mut stacks = Stacks::default();
        stacks.add(
            &dump(&[1, 0x40_0020, 0x8000_0100, 0x7fff_ffff, 0x7000_0008_0000, 0x50_0000, 0x40_1000]),
            &maps(),
            1,
        );
        let [stack] = stacks.kept() else { panic!("one stack") };
        // A return address may be the first one behind the code.
        let expected = [
            (0x8000_0008, 0x40_0020),
            (0x8000_0010, 0x8000_0100),
            (0x8000_0020, 0x7000_0008_0000),
            (0x8000_0030, 0x40_1000),
        ];
        assert_eq!(stack.words_from(0).collect::<Vec<_>>(), expected);
        assert_eq!(stack.words_from(0x8000_0009).collect::<Vec<_>>(), expected[1..]);
        assert_eq!(
            (stack.word(0x8000_0010), stack.word(0x8000_0018), stack.word(7)),
            (Some(0x8000_0100), Some(0), None)
        );
        assert_eq!((stack.word(0x8000_0030), stack.word(0x8000_0038)), (Some(0x40_1000), None));
    }

    #[test]
    fn a_long_run_is_thinned_evenly() {
        let mut stacks = Stacks::default();
        let dump = dump(&[0x40_0020; 2000]);
        for _ in 0..20_000 {
            stacks.add(&dump, &maps(), 1);
        }
        let count = stacks.kept().len() as u64;
        assert!(stacks.bytes <= BYTES_MOST && stacks.weight() > 1);
        assert!(
            (count * stacks.weight()).abs_diff(20_000) <= stacks.weight(),
            "{count} of weight {}",
            stacks.weight()
        );
    }
}
