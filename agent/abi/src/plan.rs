//! The plan file, which determines all changes that the agent makes to the program's memory.
//!
//! ```text
//! PlanHeader | FunctionRecord * | CodeRange * | Patch * | u32 fixups (TLS, bias) *
//!     | CallJump * | Segment * | segment bytes
//! ```
//!
//! A [`Table`] in the header gives the place of each table. The *arena* is the memory near the program's text that
//! contains thunks and relocated code; the plan fixes its address relative to the text. The agent maps the file
//! read-only and uses its tables as slices of these records.

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
    /// The hooks of the thunks: a [`HookMode`].
    pub hooks: HookModeCode,
    /// Link address of the program headers. The agent's load bias is AT_PHDR minus this.
    pub phdr: u64,
    /// Link address of the ELF entry point; compared with AT_ENTRY to recognise the program.
    pub entry: u64,
    /// Link address of the first function's first byte.
    pub text_lo: u64,
    /// Link address of the first byte after the last function.
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
    /// The address to which the arena offsets in [`FunctionRecord`] and [`TailRecord`] are relative. In the program's
    /// plan this is `arena`. The arenas of all libraries lie in one reservation, whose start this is in their plans, so
    /// that the records of all libraries are one table. All other arena offsets are relative to `arena`.
    pub records_base: u64,
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
    pub frame_tables: [u32; FRAMES],
    /// Number of the first function: 0 in the program's plan, at least [`LIBRARIES`] in a library's.
    pub first_function: u32,
    /// Arena offset of the stubs, which follow the last thunk and are in the functions' order.
    pub stubs: u32,
    /// Bytes of one stub.
    pub stub_len: u32,
    /// Arena offset of the code of tail calls, which follows the last stub.
    pub tail_code: u32,
    /// Nonzero if patches remove calls of the hooks of -finstrument-functions, which must be the C library's.
    pub hooks_removed: u32,
    /// Nonzero if Frida's gum patches in this run; its library ([`crate::FRIDA_FILE`]) is then preloaded beside the
    /// agent.
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
    /// [`CounterRange`], one for each function, in a library's plan with basic block counters; otherwise empty.
    pub counters: Table,
    /// u64 words: a table of fetches ([`crate::args::Fetches`]), or empty if arguments are not traced.
    pub fetches: Table,
    /// Byte offset from the start of a thread block at which the basic block counters of a library begin. 0 in the
    /// program's plan.
    pub first_counter: u64,
    /// Nonzero if the program is *standalone*: no dynamic linker loads the agent, so the thunks reach the [`ThreadWords`]
    /// by gs, and the system calls that make threads lead to [`ArenaHeader::system_call`].
    pub standalone: u64,
    /// Nonzero if functions may be entered with less stack than the slow paths need, as those of a Go program are. The
    /// agent then gives each thread a stack for slow paths.
    pub small_stacks: u64,
    /// Nonzero if preempted goroutines of a Go program continue through [`ArenaHeader::resume`].
    pub resumes: u64,
    /// 1 if the durations of calls are measured: thunks with an exit call [`ArenaHeader::begin`] and [`ArenaHeader::end`]. 2 if they do
    /// so only for outer calls: see [`ThreadWords::deep`].
    pub measured: u64,
}

/// The basic block counters that a thread needs once it has come through the hook of a library's function: those of the
/// function, and of functions into whose middle it may jump.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct CounterRange {
    /// Byte offset of the first counter from the start of a thread block.
    pub first: u32,
    /// Number of bytes, which may be 0.
    pub len: u32,
}

/// Maps a place in a copied function to the instruction of the program that it replaces.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Original {
    /// Arena offset of the first byte that replaces the instruction.
    pub offset: u32,
    /// Address of the instruction minus [`PlanHeader::text_lo`].
    pub text: u32,
}

/// Where a frame's return address is stored while the program counter is at a certain place in a thunk. The
/// values index [`PlanHeader::frame_tables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The function has returned to the thunk: rsp = CFA, the return address is in the frame's cell.
    Left = 0,
    /// The state is that at the function's first instruction: rsp = CFA - 8, the return address is in its slot.
    Called = 1,
    /// rsp = CFA, the return address is still in its slot, below rsp.
    Popped = 2,
    /// In relocated instructions that move the stack pointer: the table describes each of them.
    Moved = 3,
    /// Like [`Frame::Left`], for unwinders that use a frame's CFA as its caller's stack pointer.
    LeftPlain = 4,
    /// In the copy of a function: the table describes each instruction.
    Copied = 5,
    /// In a jump that has replaced instructions of another function than the one to whose thunk it leads: the table
    /// describes each such jump.
    Cave = 6,
}

/// Number of kinds of [`Frame`].
pub const FRAMES: usize = 7;

/// The lowest number of a library's function. The program's functions have the numbers below it.
pub const LIBRARIES: u32 = 1 << 23;

coded! {
    /// The hooks of a plan's thunks.
    pub enum HookMode as HookModeCode(u32) {
        /// Entry and exit hooks: the shadow stack determines the caller of a callback.
        Both = 1,
        /// Entry hooks only.
        Entry = 2,
    }
}

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
    /// body. 0 in entry-only thunks. Directly before the body are three jumps of [`ISLAND`] bytes each: the stack of
    /// the first two is that of the entry after the `pop`, and the stack of the third is that of the exit before the
    /// `push`. Before these are [`NOTE`] bytes of the exit, whose stack is that before the `push` as well.
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

/// Flag: calls of the function get no shadow stack cell, because the function is setjmp or similar, reads its own
/// return address, or has [`NEEDS_NO_CELL`] and is not called by unhooked code or calls nothing that has a cell.
pub const ENTRY_ONLY: u8 = 1;
/// Flag: an indirect branch inside the function may lead back to its first instruction. A tail call of the function
/// by itself is then a loop, not a call.
pub const LOOPS: u8 = 2;
/// Flag: the function's relocated instructions have an entry in the table [`Frame::Moved`].
pub const FRAMED: u8 = 4;
/// Flag: control leaves the function only by its return, and by direct calls of and jumps to hooked functions that have cells
/// or this flag. It can be the caller only of functions that know it by their return addresses, and of a signal handler; then
/// the interrupted program counter identifies it. Without [`ENTRY_ONLY`], a call of it by unhooked code gets a cell: see
/// [`CALLBACK_JUMP`].
pub const NEEDS_NO_CELL: u8 = 8;

/// Flag: hooks of other functions rely on the patches of this one, or code in the arena leads to its thunk without them. The
/// patches then stay while the function is switched off.
pub const SHARED: u8 = 16;
/// Flag: the function is switched off when its library is hooked. Only a plan that was made for a library in a process that
/// already runs has it.
pub const OFF: u8 = 32;

/// A half-open range of link addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct CodeRange {
    /// First address.
    pub lo: u64,
    /// The address after the last one.
    pub hi: u64,
}

/// Bytes of the program that are overwritten. The agent compares all `original` bytes before it makes any of its
/// patches, so that it makes all or none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Patch {
    /// Link address.
    pub address: u64,
    /// The function of whose hook the patch is a part: its index in the plan's table of functions, plus one. 0 if it is a
    /// part of none, so that it is in place as long as any hook is.
    pub hook: u32,
    /// Number of bytes of the two arrays that are in use.
    pub len: u8,
    /// If the replacement contains the 32-bit displacement of a branch to the arena: the offset of that displacement in
    /// the replacement, plus one. Otherwise 0.
    pub displacement: u8,
    /// The maker of the patch: a [`Maker`].
    pub by: MakerCode,
    /// Whether the patch stays while the hooks are paused: a [`Stay`].
    pub stays: StayCode,
    /// The bytes that the program's file has at the address.
    pub original: [u8; 16],
    /// The bytes that replace them.
    pub replacement: [u8; 16],
}

/// A jump from relocated instructions to a `call r11` that a patch has written into the function's own text. While
/// the patches are not in place, the jump has a displacement of 0 and so leads to the next instruction, the first of
/// a sequence that makes the call without that patch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct CallJump {
    /// Arena offset of the jump's displacement, which is 0 in the arena's initial contents.
    pub at: u32,
    /// The displacement while the patches are in place.
    pub displacement: u32,
}

coded! {
    /// The maker of a patch.
    pub enum Maker as MakerCode(u8) {
        /// The agent.
        Agent = 0,
        /// Frida's gum. The patch begins with a `jmp rel32` to the thunk.
        Frida = 1,
        /// Frida's gum, which fills these bytes after its jump with nops. A function that gum patches may have two
        /// [`Patch`]es.
        BehindFrida = 2,
    }
}

coded! {
    /// Whether a patch stays while the hooks are paused. Only patches of a standalone program do: in other programs, the
    /// agent's definitions take the place of these functions.
    pub enum Stay as StayCode(u8) {
        /// It does not.
        Not = 0,
        /// It stays: it belongs to the hook of a function that is called through the agent. As long as hooked frames are on
        /// a stack, an unwinder or a longjmp must find the agent.
        Function = 1,
        /// It stays: it leads a system call to the agent, which makes threads and processes.
        SystemCall = 2,
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

/// Addresses of the agent's slow paths. The agent writes them once, into the start of the arena; thunks jump through
/// them, at the offsets that are asserted below.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ArenaHeader {
    /// For thunks with entry and exit hooks whose arc is not in its home slot. Input: eax = function number, r11 =
    /// return address, rsp = CFA; rax is saved at CFA - 16 and r11 at CFA - 24. Continues at `resume` with all
    /// registers except rax unchanged, or at `body` with every register as at the function's entry.
    pub miss: u64,
    /// The same for entry-only thunks: rsp = CFA - 8. Continues only at `resume`.
    pub miss_entry: u64,
    /// For thunks that find the stack pointer outside the thread's window on entry. Input and output are those of
    /// `miss`.
    pub window: u64,
    /// The same on exit. Input: rsp = CFA; r11 is saved at CFA - 16 and rax at CFA - 24. Returns to the caller
    /// directly.
    pub exit: u64,
    /// For tail calls whose slot is not in use yet. Input: eax = index of the [`TailRecord`], rsp = CFA - 8; rax is
    /// saved at CFA - 16 and r11 at CFA - 24. Continues at the record's `again` or `thunk`.
    pub tail: u64,
    /// Address of the table of shadows, which has one word for each [`WINDOW`] of the address space. Unwinders read
    /// it: the rule for the return address of [`Frame::Left`] finds the cell through it.
    pub shadows: u64,
    /// For calls of the program's own `_Unwind_Backtrace`. Input: r11 = the function's body, r10 = the program's
    /// `_Unwind_GetIP`; all other registers are those of the call.
    pub backtrace: u64,
    /// The same for `_Unwind_SetIP`, with r10 = the program's `_Unwind_GetCFA`.
    pub land: u64,
    /// For system calls of a standalone program that make threads or processes, or execute programs. Input: the registers
    /// are those of the `syscall` instruction, except rcx, which is the address at which the program continues. Makes the
    /// system call and continues there, in a new thread or process as well. As after a `syscall` instruction, rax is the
    /// result, and rcx and r11 have no meaning.
    pub system_call: u64,
    /// For calls of a standalone program's own `_dl_find_object`. Input: r11 = the function's body; all other registers
    /// are those of the call.
    pub find_object: u64,
    /// The same for `dl_iterate_phdr`.
    pub iterate: u64,
    /// The same for `longjmp`, `siglongjmp` and their aliases.
    pub jump: u64,
    /// For the function of a Go program that the kernel calls for each signal. Input: the arguments of a signal handler;
    /// r11 = the rest of the function.
    pub signal: u64,
    /// For the function of a Go program in which a preempted goroutine waits. Input: rdi = address of the word that holds
    /// the address at which the goroutine continues. Replaces an address of an instruction that has been relocated by that
    /// of its copy. Uses no stack, and leaves rbx, rbp and r12 to r15 as they are.
    pub resume: u64,
    /// For functions whose calls are measured, at the start of their bodies: a call of this function tells the agent that a
    /// call begins. Input: rsp = CFA - 16, the address to return to is there, the function's number is at CFA - 8 -
    /// [`NUMBER_BELOW`]. Leaves all registers as they are, and uses at most 128 bytes below rsp.
    pub begin: u64,
    /// The same at their exits: the call has ended. Input: rsp = CFA - 8, where the address to return to is.
    pub end: u64,
    /// Address of a [`Labels`], between which the exit labels of the program lie.
    pub program_labels: u64,
    /// Address of a [`Labels`], between which the exit labels of libraries lie.
    pub library_labels: u64,
    /// The same as `begin`, for functions whose exits are not hooked, so that their calls cannot be measured.
    pub mark: u64,
    /// For calls of functions that copy parts of the stack away and others back. Input: r11 = the function's body; all other
    /// registers are those of the call. Puts the return addresses of the thread's frames back before that.
    pub stack_copy: u64,
}

/// The addresses between which all exit labels of a set of functions lie. No return address of a call lies there.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Labels {
    /// The lowest address.
    pub start: u64,
    /// The first address after them.
    pub end: u64,
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

/// Bytes of the jump with which the thunk of a function that has [`NEEDS_NO_CELL`] without [`ENTRY_ONLY`] continues at
/// `resume`, after it has set rsp to CFA - 8. It comes directly before the `call` of the body.
pub const CALLBACK_JUMP: u32 = 2;
/// Bytes from the start of the stubs of such a function up to the place where rsp is the CFA: those of its second look, and
/// of `lea rsp, [rsp+8]`.
pub const CALLBACK_STUB: u32 = 21 + 5;

/// Bit of [`FunctionRecord::flags`]: the body begins with code that tells the agent that a call begins.
pub const BEGINS: u8 = 64;
/// Bit of [`FunctionRecord::flags`], in a plan in which only outer calls are measured: the thunk has an exit, but leads a deeper call
/// to the body without a cell, as if the function had [`NEEDS_NO_CELL`] and [`ENTRY_ONLY`]. No hooked function is called by a jump of it.
pub const SKIPS: u8 = 128;

/// Bytes of the code at the start of the body of a function in a plan with measured calls: a store of the function's number, and
/// a call through [`ArenaHeader::begin`] or [`ArenaHeader::mark`].
pub const BEGIN_LEN: u32 = 14;
/// The same if only outer calls are measured: two comparisons of rsp with [`ThreadWords::deep`] and [`ThreadWords::deep_from`], each
/// with a short branch, come before.
pub const OUTER_BEGIN_LEN: u32 = 2 * (9 + 2) + BEGIN_LEN;
/// The distance in bytes from the return slot down to the function's number, for [`ArenaHeader::begin`].
pub const NUMBER_BELOW: u64 = 64;

/// Size in bytes of the three jumps to the slow path of exits, which follow the [`ArenaHeader`]. They are for thunks
/// that have saved rax and r11, only r11, or only rax.
pub const EXIT_JUMPS: usize = 3 * 6 + 2 * 5;

/// The agent's words of each thread, an initial-exec TLS variable. Thunks address them as `fs:[offset]`. In a standalone
/// program ([`PlanHeader::standalone`]) they are at the start of memory of the agent's own, to which the base of gs leads,
/// and thunks address them as `gs:[offset]`.
///
/// Only the thread itself and its signal handlers write the words; the injector does while the thread is stopped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ThreadWords {
    /// The address of the thread block. Before the first hooked call, it is that of a block of zeros that all threads
    /// share and that contains no arc.
    pub block: u64,
    /// The shadow of the thread's window, the [`WINDOW`] bytes of the address space whose frames the thread's thunks
    /// find without help: the [`Cell`] of a frame is at `cells + 2 * (CFA - window)`. The word before the shadow
    /// ([`WINDOW_WORD`]) contains the window's address, a multiple of its size. So one load of this word yields an
    /// address and a shadow that belong together, even in a thunk that a signal handler interrupts.
    pub cells: u64,
    /// The CFA of the last *event*: of the hooked frame that was entered last, or of a frame with a link
    /// ([`Cell::link`]) that has returned since, or of the frame that a search has found to be the newest live one.
    /// While the thread runs on its own stack, no newer live frame is on that stack, so a search for the caller of a
    /// function that unhooked code calls begins here. 0 if nothing is known.
    pub last: u64,
    /// The CFA of the thread's first hooked call, or 0 if there was none yet. The thread's stack continues from there
    /// up to the thread's control block.
    pub first_frame: u64,
    /// Stack pointer of the frame in whose cleanup landing pad an exception has landed, or 0 if the exception has
    /// reached its handler. As long as the stack is no shorter, the exception may still be in flight.
    pub landing: u64,
    /// The lowest address of the thread's own stack, or 0 if its extent is not known.
    pub stack_lo: u64,
    /// The end address of the thread's own stack, or 0 if its extent is not known.
    pub stack_hi: u64,
    /// The same as `last` for frames of hooked functions of libraries: `last` is written only by thunks of the program,
    /// and this word only by thunks of libraries. `u64::MAX` if no function of a library is hooked.
    pub library_last: u64,
    /// If the innermost open call is as deep as calls are measured: its CFA - 8. Calls are deeper, and are not measured, if their
    /// thunks find the stack pointer from `deep_from` up to here. Otherwise 0. The agent's gates decide the same without these
    /// words, so they may be 0 at any time.
    pub deep: u64,
    /// The lowest address of the stack on which that call's frame is.
    pub deep_from: u64,
}

/// The code to which the first function of a context of glibc's makecontext returns: `mov rsp, rbx; mov rdi, [rsp]`
/// (`__start_context` in sysdeps/unix/sysv/linux/x86_64/__start_context.S). The agent recognises the stack of such a
/// context by this code, which must therefore stay as it is. It is not called, so there is no return address to hook.
pub const START_OF_CONTEXT: [u8; 7] = [0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24];

/// The offset, relative to the shadow, of the word that holds the window's address.
pub const WINDOW_WORD: i64 = -8;

/// Size in bytes of a near jump with which a thunk's short branches continue.
pub const ISLAND: u32 = 5;

/// Size in bytes of the code with which a thunk's exit records that a frame with a link has returned.
pub const NOTE: u32 = 11;

/// Size of a window, in bytes.
pub const WINDOW: u64 = 1 << 26;

/// The shadow stack's record of one hooked frame that has not returned. Its address follows from the frame's CFA (the
/// value of rsp after the return), so the thread that returns through the frame finds it, in whatever order frames
/// return and on whichever thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Cell {
    /// The frame's own return address. If there is no frame, this is 0 or the address of the frame's return slot.
    /// (The exit code stores the latter because it has that address in a register.)
    pub return_address: u64,
    /// Number of the function that runs in the frame: the called function, or the last tail-called one.
    pub function: u32,
    /// For a frame that unhooked code has called: the distance in cells, plus 1, to the cell of the nearest frame
    /// that was alive at the call, or to that of the stack's end if none was. [`LEFT`] means that a jump has left the
    /// frame, which can no longer be a caller; if it belongs to a coroutine that is resumed, it can still return. 0
    /// means unknown. The link remains when the frame returns, until another frame takes its place.
    pub link: u32,
}

/// See [`Cell::link`].
pub const LEFT: u32 = 1;

/// Size in bytes of the thunk's `call`, which ends at [`FunctionRecord::exit`].
pub const CALL_LEN: u32 = 5;

// The planner's thunks, its unwind tables, and the agent's assembly address these fields.
const _: () = {
    assert!(size_of::<PlanHeader>() == 400);
    assert!(size_of::<Patch>() == 48);
    assert!(size_of::<FunctionRecord>() == 48);
    assert!(offset_of!(FunctionRecord, exit) == 8);
    assert!(offset_of!(FunctionRecord, resume) == 28);
    assert!(offset_of!(FunctionRecord, body) == 32);
    assert!(size_of::<ArenaHeader>() == 160);
    assert!(offset_of!(ArenaHeader, miss) == 0);
    assert!(offset_of!(ArenaHeader, miss_entry) == 8);
    assert!(offset_of!(ArenaHeader, window) == 16);
    assert!(offset_of!(ArenaHeader, exit) == 24);
    assert!(offset_of!(ArenaHeader, tail) == 32);
    assert!(offset_of!(ArenaHeader, shadows) == 40);
    assert!(offset_of!(ArenaHeader, backtrace) == 48);
    assert!(offset_of!(ArenaHeader, land) == 56);
    assert!(offset_of!(ArenaHeader, system_call) == 64);
    assert!(offset_of!(ArenaHeader, find_object) == 72);
    assert!(offset_of!(ArenaHeader, iterate) == 80);
    assert!(offset_of!(ArenaHeader, jump) == 88);
    assert!(offset_of!(ArenaHeader, signal) == 96);
    assert!(offset_of!(ArenaHeader, resume) == 104);
    assert!(offset_of!(ArenaHeader, begin) == 112);
    assert!(offset_of!(ArenaHeader, end) == 120);
    assert!(offset_of!(ArenaHeader, program_labels) == 128);
    assert!(offset_of!(ArenaHeader, library_labels) == 136);
    assert!(size_of::<ThreadWords>() == 80);
    assert!(offset_of!(ThreadWords, block) == 0);
    assert!(offset_of!(ThreadWords, cells) == 8);
    assert!(offset_of!(ThreadWords, last) == 16);
    assert!(offset_of!(ThreadWords, first_frame) == 24);
    assert!(offset_of!(ThreadWords, landing) == 32);
    assert!(offset_of!(ThreadWords, stack_lo) == 40);
    assert!(offset_of!(ThreadWords, stack_hi) == 48);
    assert!(offset_of!(ThreadWords, library_last) == 56);
    assert!(offset_of!(ThreadWords, deep) == 64);
    assert!(offset_of!(ThreadWords, deep_from) == 72);
    assert!(size_of::<Cell>() == 16);
    assert!(offset_of!(Cell, return_address) == 0);
    assert!(offset_of!(Cell, function) == 8);
    assert!(offset_of!(Cell, link) == 12);
};
