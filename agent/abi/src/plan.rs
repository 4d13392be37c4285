//! The plan file: everything that the agent does to the program's memory, decided beforehand.
//!
//! ```text
//! PlanHeader | FunctionRecord * | CodeRange * | Patch * | u32 fixups (TLS, bias) * | CallJump * | Segment * | segment bytes
//! ```
//!
//! A [`Table`] in the header gives the place of each table. The *arena* is the memory near the program's text that holds
//! thunks and relocated code; the plan fixes its place relative to the text. The agent maps the file read-only and takes
//! tables out of it as slices of these records.

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::coded::coded;

/// First bytes of a plan file.
pub const MAGIC: [u8; 8] = *b"gpi-plan";

/// A table in the plan file.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Table {
    /// Byte offset from the start of the plan file; a multiple of 8.
    pub offset: u64,
    /// Number of entries.
    pub count: u64,
}

/// The start of a plan file.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct PlanHeader {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`crate::VERSION`].
    pub version: u32,
    /// Which hooks the thunks have: a [`HookMode`].
    pub hooks: HookModeCode,
    /// Link address of the program headers. The agent's load bias is AT_PHDR minus this.
    pub phdr: u64,
    /// Link address of the ELF entry point; compared with AT_ENTRY to recognise the program.
    pub entry: u64,
    /// Link address of the first function's first byte.
    pub text_lo: u64,
    /// Link address behind the last function's last byte.
    pub text_hi: u64,
    /// Page-aligned link address at which the executable segments begin.
    pub code_lo: u64,
    /// Page-aligned link address at which the executable segments end.
    pub code_hi: u64,
    /// Page-aligned link address of the arena. In a PIE the arena may lie below the image, at an address that wraps
    /// around zero, so the load bias is added with wrapping arithmetic.
    pub arena: u64,
    /// Bytes of the arena, a multiple of the page size.
    pub arena_len: u64,
    /// [`FunctionRecord`]; the index is the function's number in thunks and shadow stack entries.
    pub functions: Table,
    /// [`TailRecord`].
    pub tails: Table,
    /// [`CodeRange`], sorted by address: the code of hooked functions with their `.cold` parts.
    pub hooked: Table,
    /// [`Patch`], sorted by address.
    pub patches: Table,
    /// [`Segment`]: initial contents of the arena. The rest of it is zero.
    pub segments: Table,
    /// u32 arena offsets of i32 displacements to which the thread pointer offset of the agent's
    /// [`ThreadWords`] is added.
    pub tls_fixups: Table,
    /// u32 arena offsets of u64 words to which the load bias is added.
    pub bias_fixups: Table,
    /// u32 arena offsets of u32 words to which the lower half of the load bias is added.
    pub half_bias_fixups: Table,
    /// Arena offset of [`ArenaHeader`].
    pub arena_header: u64,
    /// Arena offsets of the `.eh_frame_hdr` tables, one for each kind of place in a thunk; the index is a [`Frame`].
    pub frame_tables: [u32; 6],
    /// Arena offset behind the last thunk, where the stubs of the functions stand in the functions' order.
    pub stubs: u32,
    /// Bytes of one stub.
    pub stub_len: u32,
    /// Arena offset behind the last stub, where the code of tail calls begins.
    pub tail_code: u32,
    /// Not 0: patches take out calls of the hooks of -finstrument-functions, which must be the C library's.
    pub hooks_removed: u32,
    /// Not 0: Frida's gum patches in this run, and its library ([`crate::FRIDA_FILE`]) is preloaded beside the agent.
    pub frida: u64,
    /// Arena offset of the copies of functions whose basic blocks are counted, or the arena's length if there are none.
    /// Thunks, stubs and the code of tail calls lie before it.
    pub copies: u64,
    /// Bytes of basic block counters in a thread block.
    pub counter_bytes: u64,
    /// [`Original`], sorted by offset.
    pub originals: Table,
    /// [`CallJump`].
    pub call_jumps: Table,
}

/// Which instruction of the program a place in a copied function stands for.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Original {
    /// Arena offset of the first byte that stands for the instruction.
    pub offset: u32,
    /// Address of the instruction, less [`PlanHeader::text_lo`].
    pub text: u32,
}

/// Where a frame's return address is while control is at a place in a thunk. The values index
/// [`PlanHeader::frame_tables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The function has returned to the thunk: rsp = CFA, the return address is in the frame's cell.
    Left = 0,
    /// As at the function's first instruction: rsp = CFA - 8, the return address is in its slot.
    Called = 1,
    /// rsp = CFA, the return address is still in its slot, below rsp.
    Popped = 2,
    /// In relocated instructions that move the stack pointer: the table describes each of them.
    Moved = 3,
    /// As [`Frame::Left`], for unwinders that take a frame's CFA for its caller's stack pointer.
    LeftPlain = 4,
    /// In the copy of a function: the table describes each instruction.
    Copied = 5,
}

coded! {
    /// Which hooks the thunks of a plan have.
    pub enum HookMode as HookModeCode(u32) {
        /// Entry and exit: the shadow stack says whose call a callback is.
        Both = 1,
        /// Entry only.
        Entry = 2,
    }
}

/// What the slow paths and the collector need to know of a hooked function.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct FunctionRecord {
    /// Link address of the function's symbol.
    pub entry: u64,
    /// Arena offset of the exit label, the address that the thunk's `call` leaves in the return slot; 0: the thunk has
    /// none. A function that finds a return address in the arena was tail-called.
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
    /// Bytes from the thunk's start to the end of its `pop`, behind which the return address is not in its slot. 0 in
    /// entry-only thunks.
    pub popped: u8,
    /// Bytes from the end of the exit's `push`, which puts the return address back into its slot, to the body. 0 in
    /// entry-only thunks. Right before the body stand three jumps of [`ISLAND`] bytes each: the stack of the first two is
    /// that of the entry behind the `pop`, the stack of the third is that of the exit before the `push`. Before these
    /// stand [`NOTE`] bytes of the exit, whose stack is that before the `push` as well.
    pub pushed: u8,
    /// Bits: [`ENTRY_ONLY`], [`LOOPS`], [`FRAMED`], [`LEAF`].
    pub flags: u8,
    /// Arena offset where the thunk goes on after its arc is counted.
    pub resume: u32,
    /// Arena offset of the function's body: its relocated first instructions, as if nothing were hooked.
    pub body: u32,
    /// Bytes of the function from `entry` on.
    pub size: u32,
    /// Number of slots from `slots` on that count the function's arcs: the home slots, then [`SPARE_SLOTS`] if there are
    /// several home slots, then one for each [`TailRecord`].
    pub slot_count: u32,
    /// Arena offset of the thunk.
    pub thunk: u32,
}

/// Slots behind a function's hashed home slots: a key may stand this far behind its home.
pub const SPARE_SLOTS: u32 = 3;

/// A jump by which one hooked function tail-calls another. It leads to a thunk of its own, which counts in a slot of its
/// own.
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
    /// Arena offset of the called function's thunk.
    pub thunk: u32,
}

/// Flag: calls of the function get no shadow stack cell, because it is setjmp or the like, reads its own return address,
/// or is a [`LEAF`].
pub const ENTRY_ONLY: u8 = 1;
/// Flag: an indirect branch inside the function may lead back to its first instruction. A tail call of the function by
/// itself is a loop then, not a call.
pub const LOOPS: u8 = 2;
/// Flag: the function's relocated instructions have an entry in the table [`Frame::Moved`].
pub const FRAMED: u8 = 4;
/// Flag: the function neither calls nor jumps to another one. Only a signal handler can have it for a caller, and the
/// interrupted program counter names the function then.
pub const LEAF: u8 = 8;

/// A half-open range of link addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct CodeRange {
    /// First address.
    pub lo: u64,
    /// The address behind the last one.
    pub hi: u64,
}

/// Bytes of the program that are to be overwritten. The agent compares all `original` bytes before it makes any of its
/// patches, so that it makes all or none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Patch {
    /// Link address.
    pub address: u64,
    /// Number of bytes in use of the two arrays.
    pub len: u32,
    /// Who makes the patch: a [`Maker`].
    pub by: MakerCode,
    /// What the program's file has there.
    pub original: [u8; 16],
    /// What is written there.
    pub replacement: [u8; 16],
}

/// A jump out of relocated instructions to a `call r11` that a patch has put into the function's own text. While the
/// patches are not in place, the jump has a displacement of 0: it leads to the next instruction, which begins a sequence
/// that makes the call without that patch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct CallJump {
    /// Arena offset of the jump's displacement, which is 0 in the arena's initial contents.
    pub at: u32,
    /// The displacement while the patches are in place.
    pub displacement: u32,
}

coded! {
    /// Who makes a patch.
    pub enum Maker as MakerCode(u32) {
        /// The agent.
        Agent = 0,
        /// Frida's gum. The patch begins with a `jmp rel32` to the thunk.
        Frida = 1,
        /// Frida's gum, which fills these bytes behind its jump with nops. A function that gum patches may take two
        /// [`Patch`]es.
        BehindFrida = 2,
    }
}

/// Initial contents of a part of the arena.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Segment {
    /// Offset of the first byte in the arena.
    pub arena_offset: u64,
    /// Offset of the first byte in the plan file.
    pub file_offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// Addresses of the agent's slow paths. The agent writes them once, into the start of the arena; thunks jump through them,
/// at the offsets that are asserted below.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ArenaHeader {
    /// For thunks with entry and exit hooks whose arc is not in its home slot. In: eax = function number, r11 = return
    /// address, rsp = CFA; rax is saved at CFA - 16 and r11 at CFA - 24. Goes on at `resume` with all registers but rax as
    /// they were, or at `body` with every register as at the function's entry.
    pub miss: u64,
    /// The same for entry-only thunks: rsp = CFA - 8. Goes on at `resume` only.
    pub miss_entry: u64,
    /// For thunks that find the stack pointer outside of the thread's window on entry. In and out as `miss`.
    pub window: u64,
    /// The same on exit. In: rsp = CFA; r11 is saved at CFA - 16 and rax at CFA - 24. Returns to the caller by itself.
    pub exit: u64,
    /// For tail calls whose slot is not in use yet. In: eax = index of the [`TailRecord`], rsp = CFA - 8; rax is saved at
    /// CFA - 16 and r11 at CFA - 24. Goes on at the record's `again` or `thunk`.
    pub tail: u64,
    /// Address of the table of shadows, one word for each [`WINDOW`] of the address space. Unwinders read it: the rule for
    /// the return address of [`Frame::Left`] finds the cell by it.
    pub shadows: u64,
    /// For calls of the program's own `_Unwind_Backtrace`. In: r11 = the function's body, r10 = the program's
    /// `_Unwind_GetIP`, everything else as at the call.
    pub backtrace: u64,
    /// The same for `_Unwind_SetIP`, with r10 = the program's `_Unwind_GetCFA`.
    pub land: u64,
}

/// Bytes of the three jumps to the slow path of exits, behind the [`ArenaHeader`]. They are for thunks that have saved
/// rax and r11, only r11, or only rax.
pub const EXIT_JUMPS: usize = 3 * 6 + 2 * 5;

/// The agent's words of each thread, an initial-exec TLS variable. Thunks address them as `fs:[offset]`.
///
/// Only the thread itself writes its words, and signal handlers of that thread; the injector does while the thread stands
/// still.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ThreadWords {
    /// The thread's block. Before the first hooked call it is a block of zeros that all threads share and that holds no
    /// arc.
    pub block: u64,
    /// The shadow of the thread's window, the [`WINDOW`] bytes of the address space whose frames the thread's thunks find
    /// without help: the [`Cell`] of a frame is at `cells + 2 * (CFA - window)`. The window's address, a multiple of its
    /// size, is the word before the shadow ([`WINDOW_WORD`]). So one load of this word yields an address and a shadow that
    /// belong together, even in a thunk that a signal handler interrupts.
    pub cells: u64,
    /// The CFA of the last *event*: of the hooked frame that was entered last, or of one with a link ([`Cell::link`])
    /// that has returned since; or of the frame that a search has found to be the newest live one. While the thread
    /// runs on its own stack, no newer live frame lies on that stack: a search for the caller of a function that
    /// unhooked code calls begins here. 0: nothing is known.
    pub last: u64,
    /// The CFA of the thread's first hooked call; 0: there was none yet. The thread's stack goes on from there up to the
    /// thread's control block.
    pub first_frame: u64,
    /// Stack pointer of the frame in whose clean-up an exception has landed; 0: it has come to its handler. As long as the
    /// stack is no shorter, the exception may still be on its way.
    pub landing: u64,
    /// The lowest address of the thread's own stack; 0: the extent is not known.
    pub stack_lo: u64,
    /// The address behind the thread's own stack; 0: the extent is not known.
    pub stack_hi: u64,
}

/// Offset of the word with the window's address from the shadow.
pub const WINDOW_WORD: i64 = -8;

/// Bytes of a near jump, by which a thunk's short branches go on.
pub const ISLAND: u32 = 5;

/// Bytes of the code by which a thunk's exit notes that a frame with a link has returned.
pub const NOTE: u32 = 11;

/// Bytes of a window.
pub const WINDOW: u64 = 1 << 26;

/// The shadow stack's record of one hooked frame that has not returned. Its place follows from the frame's CFA (the value
/// of rsp after the return), so the thread that returns through the frame finds it, in whatever order frames return and on
/// whatever thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Cell {
    /// The frame's own return address. 0, or the address of the frame's return slot: there is no frame. (The exit code
    /// stores the latter because it has that address at hand.)
    pub return_address: u64,
    /// Number of the function that runs in the frame: the one called, or the last one tail-called.
    pub function: u32,
    /// For a frame that unhooked code has called: the distance in cells, plus 1, to the cell of the nearest frame that was
    /// alive then, or to that of the stack's end if none was. [`LEFT`]: a jump has left the frame, which can be no caller
    /// any more; if it is a coroutine's and is resumed, it can still return. 0: unknown. The link stays when the frame
    /// returns, until another frame takes its place.
    pub link: u32,
}

/// See [`Cell::link`].
pub const LEFT: u32 = 1;

/// Bytes of the thunk's `call`, which ends at [`FunctionRecord::exit`].
pub const CALL_LEN: u32 = 5;

// The planner's thunks, its unwind tables, and the agent's assembly address these fields.
const _: () = {
    assert!(size_of::<PlanHeader>() == 312);
    assert!(size_of::<Patch>() == 48);
    assert!(size_of::<FunctionRecord>() == 48);
    assert!(offset_of!(FunctionRecord, exit) == 8);
    assert!(offset_of!(FunctionRecord, resume) == 28);
    assert!(offset_of!(FunctionRecord, body) == 32);
    assert!(size_of::<ArenaHeader>() == 64);
    assert!(offset_of!(ArenaHeader, miss) == 0);
    assert!(offset_of!(ArenaHeader, miss_entry) == 8);
    assert!(offset_of!(ArenaHeader, window) == 16);
    assert!(offset_of!(ArenaHeader, exit) == 24);
    assert!(offset_of!(ArenaHeader, tail) == 32);
    assert!(offset_of!(ArenaHeader, shadows) == 40);
    assert!(offset_of!(ArenaHeader, backtrace) == 48);
    assert!(offset_of!(ArenaHeader, land) == 56);
    assert!(size_of::<ThreadWords>() == 56);
    assert!(offset_of!(ThreadWords, block) == 0);
    assert!(offset_of!(ThreadWords, cells) == 8);
    assert!(offset_of!(ThreadWords, last) == 16);
    assert!(offset_of!(ThreadWords, first_frame) == 24);
    assert!(offset_of!(ThreadWords, landing) == 32);
    assert!(offset_of!(ThreadWords, stack_lo) == 40);
    assert!(offset_of!(ThreadWords, stack_hi) == 48);
    assert!(size_of::<Cell>() == 16);
    assert!(offset_of!(Cell, return_address) == 0);
    assert!(offset_of!(Cell, function) == 8);
    assert!(offset_of!(Cell, link) == 12);
};
