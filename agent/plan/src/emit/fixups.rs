//! What in an arena depends on where a library is loaded, and on what has been loaded before it.
//!
//! All entries are arena offsets of words of four bytes, but for [`Fixups::arena_words`] and [`Fixups::wide_text`], whose
//! words have eight.

use std::borrow::Cow;

/// The places that [`Plan::placed`](crate::Plan::placed) changes. They are recorded for libraries only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fixups {
    /// Displacements that lead from the arena to the module itself.
    pub text: Cow<'static, [u32]>,
    /// The same with eight bytes.
    pub wide_text: Cow<'static, [u32]>,
    /// Offsets of home slots in a thread block.
    pub slots: Cow<'static, [u32]>,
    /// Numbers of functions.
    pub numbers: Cow<'static, [u32]>,
    /// Indices of tail calls.
    pub tails: Cow<'static, [u32]>,
    /// Those of the words of eight bytes with the load bias that hold addresses of the arena, not of the module.
    pub arena_words: Cow<'static, [u32]>,
    /// Displacements of basic-block counters from the start of the library's counters.
    pub counters: Cow<'static, [u32]>,
}

impl Fixups {
    /// All lists.
    pub(crate) fn lists(&self) -> [&Cow<'static, [u32]>; 7] {
        let Fixups { text, wide_text, slots, numbers, tails, arena_words, counters } = self;
        [text, wide_text, slots, numbers, tails, arena_words, counters]
    }

    /// The same, to be changed.
    pub(crate) fn lists_mut(&mut self) -> [&mut Cow<'static, [u32]>; 7] {
        let Fixups { text, wide_text, slots, numbers, tails, arena_words, counters } = self;
        [text, wide_text, slots, numbers, tails, arena_words, counters]
    }

    /// Adds the entries of another part of the arena.
    pub(crate) fn append(&mut self, other: &Fixups) {
        for (list, other) in self.lists_mut().into_iter().zip(other.lists()) {
            list.to_mut().extend_from_slice(other);
        }
    }
}
