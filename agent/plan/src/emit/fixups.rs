//! What in an arena depends on where a library is loaded, and on what has been loaded before it.
//!
//! All entries are arena offsets of words of four bytes, but for [`Fixups::arena_words`] and [`Fixups::wide_text`], whose
//! words have eight.

use serde::{Deserialize, Serialize};

/// The places that [`Plan::placed`](crate::Plan::placed) changes. They are recorded for libraries only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fixups {
    /// Displacements that lead from the arena to the module itself.
    pub text: Vec<u32>,
    /// The same with eight bytes.
    pub wide_text: Vec<u32>,
    /// Offsets of home slots in a thread block.
    pub slots: Vec<u32>,
    /// Numbers of functions.
    pub numbers: Vec<u32>,
    /// Indices of tail calls.
    pub tails: Vec<u32>,
    /// Lower halves of addresses of jumps in the module's text.
    pub sites: Vec<u32>,
    /// Those of the words of eight bytes with the load bias that hold addresses of the arena, not of the module.
    pub arena_words: Vec<u32>,
    /// Displacements of basic-block counters from the start of the library's counters.
    pub counters: Vec<u32>,
}

impl Fixups {
    /// Adds the entries of another part of the arena.
    pub(crate) fn append(&mut self, other: &mut Fixups) {
        self.text.append(&mut other.text);
        self.slots.append(&mut other.slots);
        self.numbers.append(&mut other.numbers);
        self.tails.append(&mut other.tails);
        self.sites.append(&mut other.sites);
        self.arena_words.append(&mut other.arena_words);
        self.wide_text.append(&mut other.wide_text);
        self.counters.append(&mut other.counters);
    }
}
