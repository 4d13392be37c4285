//! Addresses in a function.

/// Addresses in a function.
#[derive(Default)]
pub(crate) struct Targets {
    /// The function's first byte, and how many it has.
    start: u64,
    len: u64,
    /// A bit for each byte, up to the last of these addresses.
    bits: Vec<u64>,
}

impl Targets {
    /// None yet, for a function of `len` bytes at `start`.
    pub(crate) fn new(start: u64, len: u64) -> Targets {
        Targets { start, len, bits: Vec::new() }
    }

    /// Branches to other functions are of no interest.
    pub(crate) fn insert(&mut self, address: u64) {
        let offset = address - self.start;
        let word = (offset / 64) as usize;
        if offset < self.len {
            if word >= self.bits.len() {
                // At once for all where that is little.
                let least = (self.len / 64 + 1).min(64) as usize;
                self.bits.resize((word + 1).next_power_of_two().max(least), 0);
            }
            self.bits[word] |= 1 << (offset % 64);
        }
    }

    /// The first of these addresses that is not below `from`; none: `u64::MAX`.
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
