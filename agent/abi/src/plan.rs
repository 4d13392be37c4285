//! The plan file, which determines all changes that the agent makes to the program's memory.
//!
//! ```text
//! [copy of the program's file] | PlanHeader | FunctionRecord * | CodeRange * | Patch * | u32 fixups (TLS, bias) *
//!     | CallJump * | TextRange * | arena | ... | PlanEnd
//! ```
//!
//! [`PlanEnd`] gives the place of the header, and a [`Table`] in the header that of each table. The *arena* is the memory near the
//! program's text that contains thunks and relocated code; the plan fixes its address relative to the text. The agent
//! maps the tables read-only and uses them as slices of these records, and it maps the arena as it is in the file. So header
//! and arena begin at multiples of the page size.
//!
//! A plan that is kept for later runs is an *image*: in front of it is a copy of the program's file, whose text has the patches.
//! The agent maps that text in place of the program's. Whoever reads the names of mapped files finds an ELF file with the same
//! symbols at the same offsets.

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::coded::coded;

mod function;
mod thread;
mod thunk;

pub use function::{
    BEGINS, ENTRY_ONLY, FRAMED, FunctionRecord, LOOPS, NEEDS_NO_CELL, OFF, SHARED, SKIPS, SPARE_SLOTS,
    TailRecord,
};
pub use thread::{
    ASIDE, CLOSED, Cell, DISTANCE, FREE, INTERNED, INTERNED_LABELS, Interned, LEFT, RETURNING, SHADOWS,
    START_OF_CONTEXT, STATE, ThreadWords, WINDOW, WINDOW_WORD, WORDS_ALIGN, WORDS_BYTES,
};
pub use thunk::{
    BEGIN_LEN, CALL_LEN, CALLBACK_JUMP, CALLBACK_STUB, END_NUMBER_BELOW, EXIT_JUMPS, ISLAND, LABEL_LEN,
    LABELS_AT, NOTE, NUMBER_BELOW, OUTER_BEGIN_LEN,
};

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
    /// [`FunctionRecord`]; the index is the function's number in thunks and shadow stack entries.
    pub functions: Table,
    /// [`TailRecord`].
    pub tails: Table,
    /// [`CodeRange`], sorted by address: the code of hooked functions with their `.cold` parts.
    pub hooked: Table,
    /// [`Patch`], sorted by address.
    pub patches: Table,
    /// Offset of the arena's contents from the start of this header, a multiple of the page size.
    pub arena_file: u64,
    /// The thread pointer offset of the agent's [`ThreadWords`] that is in the arena's contents.
    pub words: i64,
    /// u32 arena offsets of i32 displacements that contain `words`. If the offset is another one in a process, the difference is
    /// added.
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
    /// [`TextRange`]: the patched text in the copy of the program's file, if there is one.
    pub text: Table,
    /// The version of the file of which it is a copy.
    pub version_of_text: FileVersion,
    /// 1 if the durations of calls are measured: thunks with an exit call [`ArenaHeader::begin`] and [`ArenaHeader::end`]. 2 if they do
    /// so only for outer calls: see [`ThreadWords::deep`].
    pub measured: u64,
    /// Nonzero if only calls from outside of the module are counted: thunks continue in the body if the return address lies within
    /// [`ArenaHeader::text_lo`], and the slow path does if a function of the module has jumped to one.
    pub outermost: u64,
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
    /// Like [`Frame::Left`], but the return slot, below rsp, contains the label of an interned frame.
    Interned = 7,
    /// Like [`Frame::Interned`], for unwinders that use a frame's CFA as its caller's stack pointer.
    InternedPlain = 8,
}

/// Number of kinds of [`Frame`].
pub const FRAMES: usize = 9;

/// The link address of the arena of a library, if the arena is no longer than the library: a gigabyte below it. The dynamic linker maps
/// libraries next to each other, so that no library is there, nor the arena of another one. Where the place is taken all the same, the
/// injector finds another one.
pub const LIBRARY_ARENA: u64 = 0_u64.wrapping_sub(1 << 30);

/// The same for an arena that is longer than the library, apart from the others.
pub const LONG_LIBRARY_ARENA: u64 = 0_u64.wrapping_sub(3 << 29);

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
    /// Whether a patch stays while the hooks are paused.
    pub enum Stay as StayCode(u8) {
        /// It does not.
        Not = 0,
        /// It stays: it belongs to the hook of a function that is called through the agent. As long as hooked frames are on
        /// a stack, a function that copies the stack must find the agent; so must an unwinder or a longjmp in a standalone
        /// program. (In other programs, the agent's definitions take the place of these.)
        Function = 1,
        /// It stays: it leads a system call to the agent, which makes threads and processes.
        SystemCall = 2,
    }
}

/// The end of a plan file.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct PlanEnd {
    /// Byte offset of the [`PlanHeader`] from the start of the file, a multiple of the page size.
    pub plan: u64,
    /// [`MAGIC`].
    pub magic: [u8; 8],
}

/// Pages of the program's executable segments, patched.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct TextRange {
    /// Link address of the first page.
    pub address: u64,
    /// Number of bytes, a multiple of the page size.
    pub len: u64,
    /// Byte offset from the start of the file, a multiple of the page size.
    pub offset: u64,
}

/// What tells the contents of a file from all others: device, inode, length in bytes, and the seconds and nanoseconds of the
/// last changes of the contents and of the inode.
pub type FileVersion = [u64; 7];

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
    /// For interned frames that return. Input: rsp = CFA - 8, where the address behind the label's call is; all registers are those of
    /// the return. Continues at the exit label of the function.
    pub interned: u64,
    /// For calls of functions that copy parts of the stack away and others back. Input: r11 = the function's body; all other
    /// registers are those of the call. Puts the return addresses of the thread's frames back before that.
    pub stack_copy: u64,
    /// For calls of the program's own `_Unwind_ForcedUnwind`. Input: r11 = the function's body, r10 = the program's
    /// `_Unwind_GetIP`; all other registers are those of the call.
    pub stop: u64,
    /// The same for `_Unwind_GetCFA`, without r10.
    pub cfa: u64,
    /// The lowest address behind a call in the module's own text: a return address is that of a call from inside of the module if it
    /// is less than `text_len` above.
    pub text_lo: u64,
    /// See [`ArenaHeader::text_lo`].
    pub text_len: u64,
}

/// Where all exit labels of a set of functions lie. No return address of a call lies in the same pages. Those of the program are all
/// that is between the addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Labels {
    /// The lowest address.
    pub start: u64,
    /// The first address after them.
    pub end: u64,
    /// For libraries, the address of the first page that has a bit at `pages`.
    pub base: u64,
    /// For libraries, the address of bits, one for each page: whether exit labels are there.
    pub pages: u64,
}

// The planner's thunks, its unwind tables, and the agent's assembly address these fields.
const _: () = {
    assert!(size_of::<PlanHeader>() == 480);
    assert!(size_of::<Patch>() == 48);
    assert!(size_of::<ArenaHeader>() == 200);
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
};
