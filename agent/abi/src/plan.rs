//! The plan file: everything that the agent does to the program's memory, decided beforehand.
//!
//! ```text
//! PlanHeader | FunctionRecord * | CodeRange * | Patch * | u32 fixups (TLS, bias) * | CallJump * | Segment * | segment bytes
//! ```
//!
//! A [`Table`] in the header holds the offset and length of each table. The *arena* is the memory near the
//! program's text that holds thunks and relocated code; the plan fixes its place relative to the text. The
//! agent maps the file read-only and takes the tables from it as slices of these records.

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
    /// The arena offset just past the last thunk. The functions' stubs begin there, in the order of the
    /// functions.
    pub stubs: u32,
    /// Bytes of one stub.
    pub stub_len: u32,
    /// The arena offset just past the last stub, where the code of tail calls begins.
    pub tail_code: u32,
    /// Nonzero if patches remove calls of the hooks of -finstrument-functions. The agent then checks that
    /// these hooks are the C library's.
    pub hooks_removed: u32,
    /// Nonzero if Frida's gum writes the patches in this run, so that its library ([`crate::FRIDA_FILE`]) is
    /// preloaded besides the agent.
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

/// The instruction of the program that a place in a copied function corresponds to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Original {
    /// The arena offset of the first byte that corresponds to the instruction.
    pub offset: u32,
    /// The address of the instruction minus [`PlanHeader::text_lo`].
    pub text: u32,
}

/// Where a frame's return address is stored while the program counter is at a certain place in a thunk. The
/// values index [`PlanHeader::frame_tables`].
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
        /// Entry and exit: the shadow stack tells which function is the caller of a callback.
        Both = 1,
        /// Entry only.
        Entry = 2,
    }
}

/// The facts about a hooked function that the slow paths and the collector need.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct FunctionRecord {
    /// Link address of the function's symbol.
    pub entry: u64,
    /// Arena offset of the exit label, the address that the thunk's `call` pushes into the return slot; 0 if
    /// the thunk has no exit label. A function that finds a return address in the arena was tail-called.
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
    /// The number of bytes from the thunk's start to the end of its `pop`, after which the return address is
    /// no longer in its slot. 0 in entry-only thunks.
    pub popped: u8,
    /// Bytes from the end of the exit's `push`, which puts the return address back into its slot, to the
    /// body. 0 in entry-only thunks. Three jumps of [`ISLAND`] bytes each directly precede the body. At the
    /// first two, the stack is as on entry after the `pop`; at the third, it is as on exit before the `push`.
    /// [`NOTE`] bytes of the exit code precede these jumps; there, too, the stack is as before the `push`.
    pub pushed: u8,
    /// Bits: [`ENTRY_ONLY`], [`LOOPS`], [`FRAMED`], [`LEAF`].
    pub flags: u8,
    /// The arena offset at which the thunk continues after its arc has been counted.
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

/// The number of extra slots after a function's hashed home slots. A key may be stored up to this many slots
/// after the one that it hashes to.
pub const SPARE_SLOTS: u32 = 3;

/// A jump by which one hooked function tail-calls another. The jump is patched to a thunk of its own, which
/// counts in a slot of its own.
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
/// Flag: an indirect branch inside the function may lead back to its first instruction. For such a function,
/// a tail call by itself is a loop and not a call.
pub const LOOPS: u8 = 2;
/// Flag: the function's relocated instructions have an entry in the table [`Frame::Moved`].
pub const FRAMED: u8 = 4;
/// Flag: the function neither calls nor jumps to another one. It can be the caller only of a signal handler,
/// and the interrupted program counter then identifies it.
pub const LEAF: u8 = 8;

/// A half-open range of link addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct CodeRange {
    /// First address.
    pub lo: u64,
    /// The address just past the last one.
    pub hi: u64,
}

/// Bytes of the program that are to be overwritten. The agent compares all `original` bytes before it makes any of its
/// patches, so that it makes all or none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Patch {
    /// Link address.
    pub address: u64,
    /// The number of bytes that are in use in each of the two arrays.
    pub len: u32,
    /// The component that writes the patch: a [`Maker`].
    pub by: MakerCode,
    /// The bytes that the program's file has at the address.
    pub original: [u8; 16],
    /// The bytes that are written to the address.
    pub replacement: [u8; 16],
}

/// A jump out of relocated instructions to a `call r11` that a patch has put into the function's own text.
/// While the patches are not in place, the jump's displacement is 0, so that it continues at the next
/// instruction. A sequence begins there that makes the call without the patch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct CallJump {
    /// Arena offset of the jump's displacement, which is 0 in the arena's initial contents.
    pub at: u32,
    /// The displacement while the patches are in place.
    pub displacement: u32,
}

coded! {
    /// The component that writes a patch.
    pub enum Maker as MakerCode(u32) {
        /// The agent.
        Agent = 0,
        /// Frida's gum. The patch begins with a `jmp rel32` to the thunk.
        Frida = 1,
        /// Frida's gum, which fills these bytes after its jump with nops. A function that gum patches may
        /// need two [`Patch`]es.
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
    /// For thunks with entry and exit hooks whose arc is not in its home slot. Input: eax = function number,
    /// r11 = return address, rsp = CFA; rax is saved at CFA - 16 and r11 at CFA - 24. Continues at `resume`
    /// with all registers except rax unchanged, or at `body` with every register as at the function's entry.
    pub miss: u64,
    /// The same for entry-only thunks: rsp = CFA - 8. Continues only at `resume`.
    pub miss_entry: u64,
    /// For thunks that find the stack pointer outside the thread's window on entry. Input and output are
    /// those of `miss`.
    pub window: u64,
    /// The same on exit. In: rsp = CFA; r11 is saved at CFA - 16 and rax at CFA - 24. This slow path itself
    /// returns to the hooked function's caller.
    pub exit: u64,
    /// For tail calls whose slot is not in use yet. In: eax = index of the [`TailRecord`], rsp = CFA - 8; rax
    /// is saved at CFA - 16 and r11 at CFA - 24. Continues at the record's `again` or `thunk`.
    pub tail: u64,
    /// Address of the table of shadows, one word for each [`WINDOW`] of the address space. Unwinders read it:
    /// the rule for the return address of [`Frame::Left`] uses it to find the frame's cell.
    pub shadows: u64,
    /// For calls of the program's own `_Unwind_Backtrace`. In: r11 = the function's body, r10 = the program's
    /// `_Unwind_GetIP`, everything else as at the call.
    pub backtrace: u64,
    /// The same for `_Unwind_SetIP`, with r10 = the program's `_Unwind_GetCFA`.
    pub land: u64,
}

/// Bytes of the three jumps to the slow path of exits, which follow the [`ArenaHeader`]. They are for thunks
/// that have saved rax and r11, only r11, or only rax.
pub const EXIT_JUMPS: usize = 3 * 6 + 2 * 5;

/// The agent's words of each thread, an initial-exec TLS variable. Thunks address them as `fs:[offset]`.
///
/// Only the thread itself and its signal handlers write the thread's words, except that the injector writes
/// them while the thread is stopped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ThreadWords {
    /// The address of the thread block. Before the thread's first hooked call, this is a thread block of
    /// zeros that all threads share and that holds no arc.
    pub block: u64,
    /// The shadow of the thread's window, the [`WINDOW`] bytes of the address space whose frames the thread's
    /// thunks can find without a slow path: the [`Cell`] of a frame is at `cells + 2 * (CFA - window)`. The
    /// window's address, a multiple of its size, is the word before the shadow ([`WINDOW_WORD`]). Therefore
    /// one load of this word yields a consistent pair of window and shadow, even in a thunk that a signal
    /// handler interrupts.
    pub cells: u64,
    /// The CFA of the last *event*: of the hooked frame that was entered last, or of one with a link
    /// ([`Cell::link`]) that has returned since; or of the frame that a search has found to be the newest
    /// live one. While the thread runs on its own stack, no newer live frame lies on that stack, so a search
    /// for the caller of a function that unhooked code calls begins here. 0 if the last event is unknown.
    pub last: u64,
    /// The CFA of the thread's first hooked call, or 0 before that call. The thread's stack extends from
    /// there up to the thread's control block.
    pub first_frame: u64,
    /// The stack pointer of the frame whose clean-up landing pad an exception has entered, or 0 if the
    /// exception has reached its handler. As long as the stack is at least this deep, the exception may still
    /// be in flight.
    pub landing: u64,
    /// The lowest address of the thread's own stack, or 0 if the stack's extent is not known.
    pub stack_lo: u64,
    /// The address just past the end of the thread's own stack, or 0 if the stack's extent is not known.
    pub stack_hi: u64,
}

/// The offset, relative to the shadow, of the word that holds the window's address.
pub const WINDOW_WORD: i64 = -8;

/// The length in bytes of a near jump, to which a thunk's short branches jump.
pub const ISLAND: u32 = 5;

/// Bytes of the code by which a thunk's exit notes that a frame with a link has returned.
pub const NOTE: u32 = 11;

/// Bytes of a window.
pub const WINDOW: u64 = 1 << 26;

/// The shadow stack's record of one hooked frame that has not returned. The cell's address depends only on
/// the frame's CFA (the value of rsp after the return). The thread that returns through the frame can
/// therefore find the cell, whatever the order in which frames return and whichever thread it is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Cell {
    /// The frame's own return address. If it is 0 or the address of the frame's return slot, there is no
    /// frame. (The exit code stores the latter because it has that address at hand.)
    pub return_address: u64,
    /// Number of the function that runs in the frame: the one called, or the last one tail-called.
    pub function: u32,
    /// For a frame that unhooked code has called: the distance in cells, plus 1, to the cell of the nearest
    /// frame that was alive at that time, or to the cell of the stack's end if none was. [`LEFT`] means that
    /// a jump has left the frame, so that it can no longer be a caller; a coroutine's frame can still return
    /// if the coroutine is resumed. 0 means that the link is unknown. The link stays when the frame returns,
    /// until another frame takes its place.
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
