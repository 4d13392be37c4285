//! The code of thunks as templates: encoded once by iced, then copied for each function with its holes
//! filled.
//!
//! Making a thunk must take well under a microsecond. The planner therefore encodes nothing for a single
//! function, except relocated instructions that require it.

mod deep;
mod encode;
mod exit;
mod inside;
pub(crate) mod kind;
mod tail;
mod thunk;

use crate::x86::template::kind::Role;
use gprofinject_abi::plan::{Cell, FREE, INTERNED, ThreadWords};
use gprofinject_abi::region::Slot;
use std::mem::offset_of;

/// The value that fills a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hole {
    /// An i32 displacement: the `fs:` offset of a word, or the `gs:` offset in a standalone program. The agent
    /// adds the offset of its words from the base of that segment.
    Tls,
    /// An i32 displacement: the offset of the function's first home slot in the thread's counters, added to
    /// the value that the template has there.
    Slot,
    /// The same, followed by a u32 immediate: the lower half of the key of a tail call's slot.
    SlotAndSite,
    /// The i32 displacement of a branch, relative to its end.
    Branch(Target),
    /// A u32 immediate: the function's number.
    Number,
    /// A u32 immediate: the mask of the home slot's offset.
    Mask,
    /// The same as a u8 immediate.
    NarrowMask,
    /// A u32 immediate: the multiplier of the home slot's hash.
    Multiplier,
    /// A u8 immediate: how many bits the hash shifts its product.
    Shift,
    /// The i32 displacement, relative to the end of the instruction, of the word of the
    /// [`ArenaHeader`] at this offset.
    Header(u32),
}

/// Where a branch out of a template leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// To the slow path for an arc that is not at its home slot.
    Miss,
    /// To the slow path for a stack pointer that is outside the thread's window on entry.
    Outside,
    /// To the slow path for a stack pointer that is outside the thread's window on exit.
    Exit,
    /// To the function's body, or back into its thunk.
    Body,
    /// To the place in the called function's thunk where a call is counted and its cell is not filled yet.
    Resume,
    /// To the function's body, behind the code that tells the agent that a call begins.
    Inner,
}

/// Encoded bytes with holes, and the offsets of labels in them.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The holes, each with the offset of its bytes.
    pub holes: Vec<(u32, Hole)>,
    /// The offset at which the thunk continues after the slow path has counted its arc. rsp is the CFA, unless the
    /// thunk has no exit.
    pub resume: u32,
    /// The offset at which the thunk continues after its second look has counted its arc.
    pub again: u32,
    /// The offset of the exit label, whose address the `call` pushes to the return slot, or 0 in a thunk
    /// without an exit.
    pub exit: u32,
    /// The offset of the first instruction after the one that pops the return address from its slot.
    pub popped: u32,
    /// The offset of the first instruction after the one that pushes the return address back to its slot.
    pub pushed: u32,
    /// The offsets of the displacements of short branches to islands, and the targets of those islands.
    to_islands: Vec<(u32, Target)>,
    /// Whether only calls by unhooked code use the exit: see [`callbacks`](kind::Kind::callbacks).
    is_for_callbacks: bool,
    /// Whose thunk it is.
    role: Role,
}

/// Bytes of a cache line. The path of each call uses as few cache lines as possible, because each one costs
/// up to a nanosecond.
pub(crate) const LINE: usize = 64;
const BLOCK: i64 = offset_of!(ThreadWords, block) as i64;
const CELLS: i64 = offset_of!(ThreadWords, cells) as i64;
const LAST: i64 = offset_of!(ThreadWords, last) as i64;
const LIBRARY_LAST: i64 = offset_of!(ThreadWords, library_last) as i64;
const RETURN: i64 = offset_of!(Cell, return_address) as i64;
const FUNCTION: i64 = offset_of!(Cell, function) as i64;
const LINK: i64 = offset_of!(Cell, link) as i64;
/// The byte of a cell that contains its state.
const STATE_BYTE: i64 = LINK + 3;
/// The states as values of that byte.
const FREE_BYTE: i32 = (FREE >> 24) as i32;
const INTERNED_BYTE: i32 = (INTERNED >> 24) as i32;
const KEY: i64 = offset_of!(Slot, key) as i64;
const COUNT: i64 = offset_of!(Slot, count) as i64;

impl Template {
    /// Returns a template without code.
    pub(crate) fn empty(role: Role) -> Template {
        Template {
            bytes: Vec::new(),
            holes: Vec::new(),
            resume: 0,
            again: 0,
            exit: 0,
            popped: 0,
            pushed: 0,
            to_islands: Vec::new(),
            is_for_callbacks: false,
            role,
        }
    }
}

#[cfg(test)]
mod tests;
