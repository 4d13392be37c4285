//! The link addresses that samples can have, and the bins of a region file.

/// The addresses that samples can have, and how the bins in the region file cover them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The link addresses of the text, the end excluded.
    pub(crate) text: (u64, u64),
    /// The link address of the arena.
    pub(crate) arena: u64,
    pub(crate) arena_len: u64,
    /// The binary logarithm of the number of bytes of text in a bin, chosen so that no bin covers bytes of
    /// two functions.
    pub(crate) text_shift: u32,
    /// The same for the arena, where no bin covers bytes of a thunk and of relocated instructions.
    pub(crate) arena_shift: u32,
}

/// The place of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A link address in the text.
    Text(u64),
    /// An offset in the arena.
    Arena(u64),
}

impl Shape {
    /// The number of bins of the text.
    pub(crate) fn text_bins(&self) -> u64 {
        self.text.1.saturating_sub(self.text.0).div_ceil(1 << self.text_shift)
    }

    /// The number of bins of the arena.
    pub(crate) fn arena_bins(&self) -> u64 {
        self.arena_len.div_ceil(1 << self.arena_shift)
    }

    /// The number of all bins.
    pub(crate) fn bins(&self) -> u64 {
        self.text_bins().saturating_add(self.arena_bins())
    }

    /// Returns the place of a link address, or `None` if it is outside the program.
    pub(crate) fn place(&self, address: u64) -> Option<Place> {
        // The arena of a position-independent program may have negative link addresses, and it may lie in a gap of the text.
        let offset = address.wrapping_sub(self.arena);
        if offset < self.arena_len {
            return Some(Place::Arena(offset));
        }
        (self.text.0..self.text.1).contains(&address).then_some(Place::Text(address))
    }

    /// Returns the link address at which a bin begins.
    pub(crate) fn address(&self, bin: u64) -> u64 {
        match bin.checked_sub(self.text_bins()) {
            None => self.text.0 + (bin << self.text_shift),
            Some(bin) => self.arena.wrapping_add(bin << self.arena_shift),
        }
    }
}
