//! The records of hooked functions and of tail calls between them.

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::plan::thunk::{BEGIN_LEN, OUTER_BEGIN_LEN};

/// A hooked function, as the slow paths and the collector need to know it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct FunctionRecord {
    /// Link address of the function's symbol.
    pub entry: u64,
    /// Arena offset of the exit label, the address that the thunk's `call` writes to the return slot, or 0 if the
    /// thunk has no exit. A function whose return address lies in the arena was tail-called.
    pub exit: u32,
    /// Byte offset of the function's first home slot from the start of a thread block.
    pub slots: u32,
    /// The home slot of a key is at `slots + ((key as u32).wrapping_mul(multiplier) >> shift & mask)`.
    /// `mask` is `(number of slots - 1) << 4`.
    pub mask: u32,
    /// See `mask`.
    pub multiplier: u32,
    /// See `mask`.
    pub shift: u8,
    /// Number of bytes from the thunk's start to the end of its `pop`, after which the return address is no longer in
    /// its slot. 0 in entry-only thunks.
    pub popped: u8,
    /// Number of bytes from the end of the exit's `push`, which writes the return address back to its slot, to the
    /// body. 0 in entry-only thunks. Directly before the body are three jumps of [`crate::plan::ISLAND`] bytes each: the stack of
    /// the first two is that of the entry after the `pop`, and the stack of the third is that of the exit before the
    /// `push`. Before these are [`crate::plan::NOTE`] bytes of the exit, whose stack is that before the `push` as well.
    pub pushed: u8,
    /// A combination of the bits [`ENTRY_ONLY`], [`LOOPS`], [`FRAMED`], [`NEEDS_NO_CELL`], [`SHARED`], [`OFF`], [`BEGINS`]
    /// and [`SKIPS`].
    pub flags: u8,
    /// Arena offset at which the thunk continues after its arc has been counted.
    pub resume: u32,
    /// Arena offset of the function's body: its relocated first instructions, as if nothing were hooked.
    pub body: u32,
    /// Size of the function from `entry` on, in bytes.
    pub size: u32,
    /// Number of slots from `slots` on that count the function's arcs: the home slots, then [`SPARE_SLOTS`] if there
    /// are several home slots, then one for each [`TailRecord`].
    pub slot_count: u32,
    /// Arena offset of the thunk.
    pub thunk: u32,
}

impl FunctionRecord {
    /// Returns the number of bytes at the start of the body that tell the agent that a call begins. `outer`: only outer calls are
    /// measured.
    pub fn begin_len(&self, outer: bool) -> u32 {
        match (self.flags & BEGINS != 0, outer) {
            (false, _) => 0,
            (true, false) => BEGIN_LEN,
            (true, true) => OUTER_BEGIN_LEN,
        }
    }

    /// Returns whether the address of an instruction of the function shows that it runs, because its frame need not have a cell.
    pub fn is_shown(&self) -> bool {
        self.flags & (NEEDS_NO_CELL | SKIPS) != 0
    }

    /// Returns whether a call of the function gets a cell only if unhooked code makes it.
    pub fn is_for_callbacks(&self) -> bool {
        self.flags & (ENTRY_ONLY | NEEDS_NO_CELL) == NEEDS_NO_CELL
    }
}

/// Flag: calls of the function get no shadow stack cell, because the function is setjmp or similar, reads its own
/// return address, or has [`NEEDS_NO_CELL`] and is not called by unhooked code or calls nothing that has a cell.
pub const ENTRY_ONLY: u8 = 1;

/// Flag: an indirect branch inside the function may lead back to its first instruction. A tail call of the function
/// by itself is then a loop, not a call.
///
/// The thunk recognises the loop by the function's exit label in the return slot, and stores nothing before. So that the label is there
/// if, and only if, the frame is the function's, the agent replaces it when the function takes over a frame of the same set of functions, or
/// hands one over. (If it takes over one of the other set, the agent recognises the loop by the frame's cell.)
pub const LOOPS: u8 = 2;

/// Flag: the function's relocated instructions have an entry in the table [`crate::plan::Frame::Moved`].
pub const FRAMED: u8 = 4;

/// Flag: control leaves the function only by its return, and by direct calls of and jumps to hooked functions that have cells
/// or this flag. It can be the caller only of functions that know it by their return addresses, and of a signal handler; then
/// the interrupted program counter identifies it. Without [`ENTRY_ONLY`], a call of it by unhooked code gets a cell: see
/// [`crate::plan::CALLBACK_JUMP`].
pub const NEEDS_NO_CELL: u8 = 8;

/// Flag: hooks of other functions rely on the patches of this one, or code in the arena leads to its thunk without them. The
/// patches then stay while the function is switched off.
pub const SHARED: u8 = 16;

/// Flag: the function is switched off when its library is hooked. Only a plan that was made for a library in a process that
/// already runs has it.
pub const OFF: u8 = 32;

/// Flag: the body begins with code that tells the agent that a call begins.
pub const BEGINS: u8 = 64;

/// Flag, in a plan in which only outer calls are measured: the thunk has an exit, but leads a deeper call to the body without
/// a cell, as if the function had [`NEEDS_NO_CELL`] and [`ENTRY_ONLY`]. No hooked function is called by a jump of it.
pub const SKIPS: u8 = 128;

/// Number of slots after a function's hashed home slots: a key may be up to this many slots after its home.
pub const SPARE_SLOTS: u32 = 3;

/// A jump by which one hooked function tail-calls another. It is redirected to a thunk of its own, which counts in a
/// slot of its own.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct TailRecord {
    /// Link address of the jump.
    pub site: u64,
    /// Byte offset of its slot from the start of a thread block. The slot's key is
    /// [`crate::region::SITE`] | `site`.
    pub slot: u32,
    /// Number of the function that is called.
    pub callee: u32,
    /// Arena offset of the jump's thunk.
    pub again: u32,
    /// Arena offset of the called function's thunk, where the call is counted if the slot cannot be used. If the function
    /// that jumps has no cell, that of the called function's body, and the call is lost.
    pub thunk: u32,
    /// Arena offset of the stub that leads from the jump's thunk to the slow path. Stubs and thunks are in the order of the
    /// records.
    pub stub: u32,
    /// Arena offset of the jump with which the thunk ends if it fills the cell of the called function, where rsp is the CFA:
    /// the function that jumps has no cell, and the one that is called gets one. Otherwise 0.
    pub fills: u32,
    /// Number of the function that jumps.
    pub caller: u32,
    /// 0.
    pub reserved: u32,
}

// The agent's assembly addresses these fields.
const _: () = {
    assert!(size_of::<FunctionRecord>() == 48);
    assert!(offset_of!(FunctionRecord, exit) == 8);
    assert!(offset_of!(FunctionRecord, resume) == 28);
    assert!(offset_of!(FunctionRecord, body) == 32);
};
