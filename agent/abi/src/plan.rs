//! The plan file: everything that the agent does to the program's memory, decided beforehand.
//!
//! ```text
//! PlanHeader | FunctionRecord * | CodeRange * | Patch * | u32 fixups (TLS, bias) * | CallJump * | Segment * | segment bytes
//! ```
//!
//! Each table is named by a [`Table`] in the header. The *arena* is the block of memory near the
//! program's text that holds thunks and relocated code; the plan fixes its place relative to the text.

pub const MAGIC: [u8; 8] = *b"gpi-plan";

/// A table in the plan file.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Byte offset from the start of the plan file; a multiple of 8.
    pub offset: u64,
    /// Number of entries.
    pub count: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanHeader {
    pub magic: [u8; 8],
    /// [`crate::VERSION`].
    pub version: u32,
    /// [`HOOK_BOTH`] or [`HOOK_ENTRY`].
    pub hooks: u32,
    /// Link address of the program headers. The agent's load bias is AT_PHDR minus this.
    pub phdr: u64,
    /// Link address of the ELF entry point; compared with AT_ENTRY to recognise the program.
    pub entry: u64,
    /// Extents of all functions found, link addresses, `lo` inclusive, `hi` exclusive.
    pub text_lo: u64,
    pub text_hi: u64,
    /// Page-aligned extents of the executable segments: what the agent makes writable while it patches.
    pub code_lo: u64,
    pub code_hi: u64,
    /// Where the arena goes: a link address, page-aligned; below the image it may wrap around zero
    /// in a PIE (add the load bias with wrapping arithmetic).
    pub arena: u64,
    /// Bytes, a multiple of the page size.
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
    /// Arena offsets of the `.eh_frame_hdr` that describes a place in a thunk; the index is a [`Frame`].
    pub frame_tables: [u32; 6],
    /// Arena offset behind the last thunk: the stubs of functions, `stub_len` bytes each, in their order,
    /// then at `tail_code` what belongs to tail calls.
    pub stubs: u32,
    pub stub_len: u32,
    pub tail_code: u32,
    /// Not 0: patches take out calls of the hooks of -finstrument-functions, which must be the C library's.
    pub hooks_removed: u32,
    /// Not 0: Frida's gum patches in this run, and its library ([`crate::FRIDA_FILE`]) is preloaded beside the agent.
    pub frida: u64,
    /// Arena offset of the copies of functions whose blocks are counted; without any the arena's length. What lies
    /// before it are thunks.
    pub copies: u64,
    /// Bytes of block counters in a thread block.
    pub counter_bytes: u64,
    /// [`Original`], sorted by offset.
    pub originals: Table,
    /// [`CallJump`].
    pub call_jumps: Table,
}

/// Where an instruction of a copy comes from.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Original {
    /// Arena offset, from which on the bytes are this instruction's.
    pub offset: u32,
    /// Its address, from [`PlanHeader::text_lo`].
    pub text: u32,
}

/// What the stack looks like at a place in a thunk. Names index [`PlanHeader::frame_tables`].
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

pub const HOOK_BOTH: u32 = 1;
pub const HOOK_ENTRY: u32 = 2;

/// A hooked function, as the slow paths and the collector need it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionRecord {
    /// Link address of the function's symbol.
    pub entry: u64,
    /// Arena offset of the address that the thunk's `call` leaves in the return slot (the exit label).
    /// A return address in the arena means "tail-called". 0 where there is none.
    pub exit: u32,
    /// Byte offset of the function's first home slot from the start of a thread block.
    pub slots: u32,
    /// The home slot of a key is at `slots + ((key as u32).wrapping_mul(multiplier) >> shift & mask)`.
    /// `mask` is `(number of slots - 1) << 4`.
    pub mask: u32,
    pub multiplier: u32,
    pub shift: u8,
    /// Bytes from the thunk's start to the end of its `pop`, and from the end of the exit's `push` to the
    /// body: in between, the return address is not in its slot. 0 in entry-only thunks. Right before the body are
    /// three jumps of [`ISLAND`] bytes each, two with the stack of the entry behind the `pop`, one with that of the exit
    /// before the `push`; and [`NOTE`] bytes of the exit, before the `push` as well.
    pub popped: u8,
    pub pushed: u8,
    /// [`ENTRY_ONLY`], [`LOOPS`], [`FRAMED`], [`LEAF`].
    pub flags: u8,
    /// Arena offset where the thunk goes on after its arc is counted.
    pub resume: u32,
    /// Arena offset of the function's body: its relocated first instructions, as if nothing were hooked.
    pub body: u32,
    /// Bytes of the function from `entry` on.
    pub size: u32,
    /// Slots from `slots` on that count the function's arcs: the home slots, [`SPARE_SLOTS`] behind them
    /// if there are several, then one for each [`TailRecord`].
    pub slot_count: u32,
    /// Arena offset of the thunk.
    pub thunk: u32,
}

/// Slots behind a function's hashed home slots: a key may stand this far behind its home.
pub const SPARE_SLOTS: u32 = 3;

/// A jump by which one hooked function tail-calls another: it leads to a thunk of its own, which counts
/// in a slot of its own.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TailRecord {
    /// Link address of the jump.
    pub site: u64,
    /// Byte offset of its slot from the start of a thread block. The slot's key is
    /// [`crate::region::SITE`] | `site`.
    pub slot: u32,
    /// Number of the function that is called.
    pub callee: u32,
    /// Arena offset of the jump's thunk, and of the called function's.
    pub again: u32,
    pub thunk: u32,
}

/// The function gets no shadow stack cell (setjmp and its like, or a function that reads its own
/// return address, or a [`LEAF`]).
pub const ENTRY_ONLY: u8 = 1;
/// An indirect branch inside the function may lead back to its first instruction: a tail call by the
/// function itself is a loop, not a call.
pub const LOOPS: u8 = 2;
/// Its relocated instructions have an entry in the table [`Frame::Moved`].
pub const FRAMED: u8 = 4;
/// Calls nothing and goes on nowhere else. Nobody can be charged to its frame but a signal handler, which knows
/// the function by the place that it interrupted.
pub const LEAF: u8 = 8;

/// A half-open range of link addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeRange {
    pub lo: u64,
    pub hi: u64,
}

/// Bytes of the program to be overwritten. All patches of the agent's are made, or none: it first compares
/// every `original`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// Link address.
    pub address: u64,
    /// Bytes used of the two arrays.
    pub len: u32,
    /// [`BY_AGENT`], [`BY_FRIDA`] or [`BEHIND_FRIDA`].
    pub by: u32,
    pub original: [u8; 16],
    pub replacement: [u8; 16],
}

/// A call that is made in its place while the patches are there: a patch ends it with `call r11`, and the relocated
/// instructions of its function jump there. While the patches are not there they must not; the jump leads to the next
/// instruction then, which begins what does the same without that patch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallJump {
    /// Arena offset of the jump's displacement, 0 in the arena's initial contents.
    pub at: u32,
    /// What it is while the patches are there.
    pub displacement: u32,
}

/// Who makes a patch. What gum makes begins with a `jmp rel32` to the thunk.
pub const BY_AGENT: u32 = 0;
pub const BY_FRIDA: u32 = 1;
/// Bytes that gum fills with nops behind its jump: a function that it patches may take two [`Patch`]es.
pub const BEHIND_FRIDA: u32 = 2;

/// Initial contents of a part of the arena.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Offset in the arena.
    pub arena_offset: u64,
    /// Offset in the plan file.
    pub file_offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Addresses of the agent's slow paths, written by the agent, called by thunks through memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaHeader {
    /// The arc is not in its home slot (entry and exit hooked). Jumped to with eax = function number,
    /// r11 = return address, rsp = CFA, rax saved at CFA - 16 and r11 at CFA - 24; goes on at `resume`
    /// with all as it was but for rax, or at `body` with every register as at the function's entry.
    pub miss: u64,
    /// The same for entry-only thunks: rsp = CFA - 8. Goes on at `resume` only.
    pub miss_entry: u64,
    /// The stack pointer is outside the thread's window. In and out as `miss`.
    pub window: u64,
    /// The same on exit. Jumped to with rsp = CFA, r11 saved at CFA - 16 and rax at CFA - 24; returns to the
    /// caller by itself.
    pub exit: u64,
    /// A tail call's slot is not in use yet. Jumped to with eax = index of the [`TailRecord`],
    /// rsp = CFA - 8, rax saved at CFA - 16 and r11 at CFA - 24; goes on at the record's `again` or `thunk`.
    pub tail: u64,
    /// Address of the table of shadows, one word for each [`WINDOW`] of the address space. Read by
    /// unwinders: the rule for the return address of [`Frame::Left`] finds the cell by it.
    pub shadows: u64,
    /// The program's own `_Unwind_Backtrace` was called: jumped to with r11 = the function's body,
    /// r10 = its `_Unwind_GetIP`, and all else as at the call.
    pub backtrace: u64,
    /// The same of `_Unwind_SetIP`, with r10 = its `_Unwind_GetCFA`.
    pub land: u64,
}

/// Bytes of the jumps to the slow path of exits behind the [`ArenaHeader`]. There are three: thunks have
/// saved both registers that it wants saved, or r11 only, or rax only.
pub const EXIT_JUMPS: usize = 3 * 6 + 2 * 5;

/// The agent's per-thread words, an initial-exec TLS block. Thunks address them as `fs:[offset]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadWords {
    /// The thread's block; before the first hooked call a read-only block of zeros, which every arc misses.
    pub block: u64,
    /// The shadow of the window, the [`WINDOW`] bytes of the address space whose shadow stack the thread
    /// reaches without asking: the [`Cell`] of a frame is at `cells + 2 * (CFA - window)`. The window's
    /// address, a multiple of its size, is the word before the shadow ([`WINDOW_WORD`]), so that whoever
    /// reads this one word, even a thunk that a signal handler interrupts, has a pair that belongs together.
    pub cells: u64,
    /// The CFA of the last *event*: of the hooked frame that was entered last, or of one with a link ([`Cell::link`])
    /// that has returned since; or of the frame that a search has found to be the newest live one. While the thread
    /// runs on its own stack, no newer live frame lies on that stack: a search for the caller of a function that
    /// unhooked code calls begins here. 0: nothing is known.
    pub last: u64,
    /// The CFA of the thread's first hooked call. From there on up to the thread's control block lies
    /// its stack. 0: none yet.
    pub first_frame: u64,
    /// Where an exception has landed in a clean-up: the stack pointer of the frame. 0: it has come to its handler. As
    /// long as the stack is no shorter, the exception may still be on its way.
    pub landing: u64,
    /// The extent of the thread's own stack, as far as it can be told; else both are 0.
    pub stack_lo: u64,
    pub stack_hi: u64,
}

/// Number of words in [`ThreadWords`].
pub const THREAD_WORDS: usize = size_of::<ThreadWords>() / 8;

/// Where the window's address stands, from the shadow's.
pub const WINDOW_WORD: i64 = -8;

/// Bytes of a near jump, by which a thunk's short branches go on.
pub const ISLAND: u32 = 5;

/// Bytes of the code by which a thunk's exit notes that a frame with a link has returned.
pub const NOTE: u32 = 11;

/// Bytes of a window.
pub const WINDOW: u64 = 1 << 26;

/// The shadow stack's record of one hooked frame that has not returned. Its place follows from the
/// frame's CFA (the value of rsp after the return), so that a frame is found by whoever returns through
/// it, in whatever order and on whatever thread that happens.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Where the frame really returns to. 0, or the address of the frame's own return slot (which the
    /// exit code has at hand): no frame here.
    pub return_address: u64,
    /// Number of the function that runs in the frame: the one called, or the last one tail-called.
    pub function: u32,
    /// Whose call this was, for a frame that unhooked code has called: the distance to the cell of the nearest live
    /// frame at that time (or of the stack's end, if there was none), in cells, plus 1. [`LEFT`]: a jump has left the frame, which is no caller
    /// any more. (Should it be a coroutine's that is resumed, it still returns.) 0: it is not known. The link stays
    /// when the frame returns, until another frame takes its place.
    pub link: u32,
}

/// See [`Cell::link`].
pub const LEFT: u32 = 1;

/// Bytes of the thunk's `call`, which ends at [`FunctionRecord::exit`].
pub const CALL_LEN: u32 = 5;

const _: () = {
    assert!(size_of::<Table>() == 16);
    assert!(size_of::<PlanHeader>() == 312);
    assert!(size_of::<Original>() == 8);
    assert!(size_of::<FunctionRecord>() == 48);
    assert!(size_of::<TailRecord>() == 24);
    assert!(size_of::<CodeRange>() == 16);
    assert!(size_of::<Patch>() == 48);
    assert!(size_of::<CallJump>() == 8);
    assert!(size_of::<Segment>() == 24);
    assert!(size_of::<ArenaHeader>() == 64);
    assert!(size_of::<ThreadWords>() == 56);
    assert!(size_of::<Cell>() == 16);
};
