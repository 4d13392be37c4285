//! The places of the thunks and stubs of tail calls.

use crate::decide::tails::Tail;
use crate::emit::code::{LOAD_RAX, STUB};
use crate::x86::jump::JUMP;
use crate::x86::template::kind::{Kind, Role};
use crate::x86::template::{LINE, Template};
use std::collections::HashMap;

/// `mov r11, [rsp-16]`.
pub(crate) const RESTORE_R11: [u8; 5] = [0x4c, 0x8b, 0x5c, 0x24, 0xf0];

/// Bytes of the stubs of a tail call: one of [`Writer::stub`](crate::emit::code::Writer::stub), and code
/// that restores both registers and jumps.
pub(super) const STUBS: usize = STUB + LOAD_RAX[1].len() + RESTORE_R11.len() + JUMP as usize;

/// Returns the distance from one thunk to the next in bytes: the size of the largest thunk.
pub(super) fn pitch() -> usize {
    Template::filling_tail(Kind::LARGEST, Role::Program).bytes.len().next_multiple_of(LINE)
}

/// The places of the thunks and stubs of tail calls, as arena offsets.
pub(crate) struct Tails {
    /// The first byte of the thunks.
    thunks: usize,
    /// The first byte of the stubs.
    pub(crate) stubs: usize,
    /// The distance from one thunk to the next.
    pitch: usize,
    /// For each tail call that is relocated with its function's first instructions, by its address: the index
    /// of its thunk.
    moved: HashMap<u64, usize>,
    /// The same for all tail calls, if functions are copied.
    sites: HashMap<u64, usize>,
}

impl Tails {
    /// Assigns places to the thunks from `thunks` on and to the stubs from `stubs` on. `copies` is whether
    /// functions are copied.
    pub(super) fn new(thunks: usize, stubs: usize, tails: &[Tail], copies: bool) -> Tails {
        let relocated = tails.iter().zip(0..).filter(|(tail, _)| tail.relocated);
        let moved = relocated.map(|(tail, index)| (tail.branch.site, index)).collect();
        let all = tails.iter().zip(0..).filter(|_| copies).map(|(tail, index)| (tail.branch.site, index));
        Tails { thunks, stubs, pitch: pitch(), moved, sites: all.collect() }
    }

    /// Returns the first byte of the thunks.
    pub(super) fn start(&self) -> usize {
        self.thunks
    }

    /// Returns the place of the thunk with an index.
    pub(crate) fn thunk(&self, index: usize) -> usize {
        self.thunks + index * self.pitch
    }

    /// Returns the place of the thunk for a jump among relocated instructions.
    pub(super) fn moved(&self, site: u64) -> Option<usize> {
        self.moved.get(&site).map(|&index| self.thunk(index))
    }

    /// Returns the place of the thunk for a jump in a copied function.
    pub(super) fn of_site(&self, site: u64) -> Option<usize> {
        self.sites.get(&site).map(|&index| self.thunk(index))
    }
}
