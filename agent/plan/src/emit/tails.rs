//! Places of tail calls.

use crate::decide::tails::Tail;
use crate::emit::code::{LOAD_RAX, STUB};
use crate::x86::jump::JUMP;
use crate::x86::template::kind::Kind;
use crate::x86::template::{LINE, Template};
use std::collections::HashMap;

/// `mov r11, [rsp-16]`.
pub(crate) const RESTORE_R11: [u8; 5] = [0x4c, 0x8b, 0x5c, 0x24, 0xf0];

/// Bytes of a tail call's stubs: [`crate::emit::emitter::Writer::stub`], and what restores both, with a near jump.
pub(super) const STUBS: usize = STUB + LOAD_RAX[1].len() + RESTORE_R11.len() + JUMP as usize;

/// Bytes from one thunk to the next: room for the largest.
pub(super) fn pitch() -> usize {
    Template::tail(Kind::LARGEST).bytes.len().next_multiple_of(LINE)
}

/// Where the tail calls' thunks and stubs are.
pub(crate) struct Tails {
    /// First byte of the thunks, and of the stubs.
    thunks: usize,
    pub(crate) stubs: usize,
    pitch: usize,
    /// Sites of tail calls that are relocated with their function's first instructions, and the indices
    /// of their thunks.
    moved: HashMap<u64, usize>,
    /// The same of all sites, where functions are copied.
    sites: HashMap<u64, usize>,
}

impl Tails {
    pub(super) fn new(thunks: usize, stubs: usize, tails: &[Tail], copies: bool) -> Tails {
        let relocated = tails.iter().zip(0..).filter(|(tail, _)| tail.relocated);
        let moved = relocated.map(|(tail, index)| (tail.branch.site, index)).collect();
        let all = tails.iter().zip(0..).filter(|_| copies).map(|(tail, index)| (tail.branch.site, index));
        Tails { thunks, stubs, pitch: pitch(), moved, sites: all.collect() }
    }

    /// Arena offset of all this.
    pub(super) fn start(&self) -> usize {
        self.thunks
    }

    pub(crate) fn thunk(&self, index: usize) -> usize {
        self.thunks + index * self.pitch
    }

    /// The thunk for a jump among relocated instructions.
    pub(super) fn moved(&self, site: u64) -> Option<usize> {
        self.moved.get(&site).map(|&index| self.thunk(index))
    }

    /// The thunk for a jump in a copied function.
    pub(super) fn of_site(&self, site: u64) -> Option<usize> {
        self.sites.get(&site).map(|&index| self.thunk(index))
    }
}
