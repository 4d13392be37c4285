//! A set of addresses in one function.

/// A set of addresses in one function.
#[derive(Default)]
pub(crate) struct Targets {
    /// The function's first byte.
    start: u64,
    /// Bytes of the function.
    len: u64,
    /// A bit for each byte of the function, up to the highest address in the set.
    bits: Vec<u64>,
}

impl Targets {
    /// Returns an empty set for a function of `len` bytes at `start`.
    pub(crate) fn new(start: u64, len: u64) -> Targets {
        Targets { start, len, bits: Vec::new() }
    }

    /// Adds an address. An address outside the function is ignored.
    pub(crate) fn insert(&mut self, address: u64) {
        let offset = address - self.start;
        let word = (offset / 64) as usize;
        if offset < self.len {
            if word >= self.bits.len() {
                // For a small function, all words are allocated at once.
                let least = (self.len / 64 + 1).min(64) as usize;
                self.bits.resize((word + 1).next_power_of_two().max(least), 0);
            }
            self.bits[word] |= 1 << (offset % 64);
        }
    }

    /// Returns the first address in the set that is not below `from`, or `u64::MAX`.
    pub(crate) fn first(&self, from: u64) -> u64 {
        let offset = from - self.start;
        let mut word = (offset / 64) as usize;
        let mut bits = self.bits.get(word).map_or(0, |bits| bits & u64::MAX << (offset % 64));
        while bits == 0 {
            word += 1;
            match self.bits.get(word) {
                Some(&next) => bits = next,
                None => return u64::MAX,
            }
        }
        self.start + word as u64 * 64 + u64::from(bits.trailing_zeros())
    }
}
