//! Where samples can be: the link addresses that the bins of a region file stand for.

/// Where samples can be, and what the bins in the region file cover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Link addresses, the end excluded.
    pub(crate) text: (u64, u64),
    /// Link address.
    pub(crate) arena: u64,
    pub(crate) arena_len: u64,
    /// Binary logarithm of the bytes of text that a bin covers: so many that no bin covers bytes of two functions.
    pub(crate) text_shift: u32,
    /// The same of the arena and its thunks.
    pub(crate) arena_shift: u32,
}

/// Where a sample is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Link address.
    Text(u64),
    /// Offset in the arena.
    Arena(u64),
}

impl Shape {
    pub(crate) fn text_bins(&self) -> u64 {
        self.text.1.saturating_sub(self.text.0).div_ceil(1 << self.text_shift)
    }

    pub(crate) fn arena_bins(&self) -> u64 {
        self.arena_len.div_ceil(1 << self.arena_shift)
    }

    pub(crate) fn bins(&self) -> u64 {
        self.text_bins().saturating_add(self.arena_bins())
    }

    /// Where a link address is; None: a sample there is outside of the program.
    pub(crate) fn place(&self, address: u64) -> Option<Place> {
        if (self.text.0..self.text.1).contains(&address) {
            return Some(Place::Text(address));
        }
        // The arena of a PIE may lie below address 0.
        let offset = address.wrapping_sub(self.arena);
        (offset < self.arena_len).then_some(Place::Arena(offset))
    }

    /// The link address at which a bin begins.
    pub(crate) fn address(&self, bin: u64) -> u64 {
        match bin.checked_sub(self.text_bins()) {
            None => self.text.0 + (bin << self.text_shift),
            Some(bin) => self.arena.wrapping_add(bin << self.arena_shift),
        }
    }
}
