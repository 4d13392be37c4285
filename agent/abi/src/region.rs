//! The region file, which contains the counts of one process. It outlives the process.
//!
//! ```text
//! 0                   RegionHeader (one page)
//! loads_offset        LoadRecord *: LOADS_MAX of them, if libraries are hooked
//! histogram_offset    u32 bins: `text_bins` of the text from `PlanHeader::text_lo` on, `1 << text_shift` bytes
//!                     each, then `arena_bins` of the arena, `1 << arena_shift` bytes each
//! elsewhere_offset    SampleRecord *: a hash table of SAMPLES_MAX samples outside of the program, if the agent samples
//! blocks_offset       thread blocks, `block_len` bytes each, `RegionHeader::blocks` of them
//! ```
//!
//! A thread block, at a multiple of the page size:
//!
//! ```text
//! 0                   BlockHeader
//! RECENT              u64 *: arcs that were found lately away from home, see [`recent`]
//! SLOTS               Slot *: the home slots of all functions, `slot_bytes` bytes
//! segment(0)...       Overflow *: SEGMENTS tables, each four times the one before
//! counters            u64 *: how often basic blocks were entered, `counter_bytes` bytes
//! libraries           Slot *: the home slots of libraries' functions, `library_bytes` bytes
//! ```
//!
//! The file is sparse; the injector gives it its full length. Before the agent stores the first arc in a *chunk* of a
//! thread block, it commits the chunk: MADV_POPULATE_WRITE, then a shared mapping that replaces the zeros there. A
//! full file system is therefore an error code and not a SIGBUS. Parts that were never committed read as zeros.
//!
//! The records here are for code that reads or writes a file as a whole. The agent, whose threads use a mapping of
//! the file at the same time, accesses the same fields through [`crate::shared`], which documents the writer of each
//! field.

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::clock::ClockCode;
use crate::coded::coded;
use crate::full::FullCode;
use crate::plan::{HookModeCode, LIBRARIES};

mod libraries;

pub use libraries::{
    FileIdentity, LEFT_OUT, LOADS_MAX, LOST_NAMED, LOST_WORDS, LeftOut, Load, LoadCode, LoadRecord, Lost,
    LostCode,
};

/// Key of an arc for a call from code that is not hooked: this bit, and the number of the function that is
/// charged. (The key of a call from hooked code is its runtime return address.)
pub const CALLER: u64 = 1 << 63;
/// Key of an arc for a tail call: this bit, and the number of the function that left by a jump.
pub const TAIL: u64 = 1 << 62;
/// Key of an arc for a tail call whose jump the plan knows: this bit, and the jump's link address.
pub const SITE: u64 = 1 << 61;
/// Key of an arc for a call from code that is not hooked while no hooked function was running.
pub const ROOT: u64 = u64::MAX;

/// Bit in the key of an arc into a function of the program, beside a return address in the program, or beside [`CALLER`]
/// or [`TAIL`] and the number of a function of the program: the call came from a hooked library, and this arc is for the program's own view alone, in which the
/// caller is the newest live function of the program. The arc with the true caller, which is in a library, has a key of
/// its own.
pub const OWN: u64 = 1 << 59;
/// Bit in the key of an arc into a function of the program, beside a return address in a hooked library: each such call
/// also counts an arc with [`OWN`]. With this bit, the thunk does not find the key, so it never counts one arc without the
/// other. Without it, which is so if no shadow stack is kept for the program, the call has no caller in the program's own
/// view.
pub const TWICE: u64 = 1 << 58;
/// Bit in the key of an arc whose call was made in a library that was unloaded, after another one was loaded at the same
/// address. Beside it are the library's index in the table of loaded libraries, from bit [`LOAD_SHIFT`] on, the return
/// address, and perhaps [`TWICE`].
pub const ARCHIVED: u64 = 1 << 57;
/// See [`ARCHIVED`].
pub const LOAD_SHIFT: u32 = 47;
/// The bits of a key that are those of a return address. User addresses have 47 bits.
pub const RETURN_ADDRESS: u64 = (1 << 47) - 1;

/// Returns the index of the library in a key with [`ARCHIVED`], or `None` if it is another key.
pub const fn is_archived(key: u64) -> Option<u32> {
    let is = key & (CALLER | TAIL | SITE | OWN | ARCHIVED) == ARCHIVED;
    if is { Some((key >> LOAD_SHIFT) as u32 % LOADS_MAX as u32) } else { None }
}

/// The number of no function: [`OWN`] | [`CALLER`] | this is the key, in the program's own view, of a call that came
/// from a hooked library while no hooked function of the program was running.
pub const NO_FUNCTION: u32 = LIBRARIES - 1;

/// First bytes of a region file.
pub const MAGIC: [u8; 8] = *b"gpi-regn";
/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// The injector's part of a region file's header. The injector writes it before the program starts, and it does not
/// change later. The agent of a forked child copies the parent's into its own file.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct RegionOrders {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`crate::VERSION`].
    pub version: u32,
    /// Samples per second of CPU time that the agent takes by timer, or 0 if the agent does not sample.
    pub timer_rate: u32,
    /// File offset of the histogram.
    pub histogram_offset: u64,
    /// Number of bins of the program's text.
    pub text_bins: u64,
    /// Number of bins of the arena, which follow those of the text.
    pub arena_bins: u64,
    /// Binary logarithm of the bytes of text that a bin covers. No bin covers bytes of two functions.
    pub text_shift: u32,
    /// Binary logarithm of the bytes of the arena that a bin covers.
    pub arena_shift: u32,
    /// File offset of the first thread block.
    pub blocks_offset: u64,
    /// Bytes of a thread block.
    pub block_len: u64,
    /// Bytes of home slots in a thread block.
    pub slot_bytes: u64,
    /// Bytes of a chunk of the home slots; a multiple of the page size.
    pub slot_chunk: u64,
    /// Bytes of basic block counters in a thread block, committed as a whole when a thread gets the block.
    pub counter_bytes: u64,
    /// Number of thread blocks for which the (sparse) file has room: its length is
    /// `blocks_offset + blocks_max * block_len`.
    pub blocks_max: u64,
    /// Nonzero if forked children and executed programs are profiled as well.
    pub follow: u32,
    /// Number of the plan in the injector.
    pub plan: u32,
    /// File offset of the table of loaded libraries: [`LOADS_MAX`] times a [`LoadRecord`]. 0 if libraries are not
    /// hooked.
    pub loads_offset: u64,
    /// Bytes of library slots in a thread block, or 0 if libraries are not hooked.
    pub library_bytes: u64,
    /// File offset of the table of samples outside of the program: [`SAMPLES_MAX`] times a [`SampleRecord`].
    pub elsewhere_offset: u64,
    /// The hooks of the thunks of libraries.
    pub library_hooks: HookModeCode,
    /// Nonzero if thread blocks of memory files are mapped as a whole: a page of a memory file takes nothing but memory, which the kernel
    /// promises to nobody beforehand.
    pub maps_whole: u32,
    /// Bytes of basic block counters of libraries in a thread block, or 0 if they are not counted.
    pub library_counter_bytes: u64,
    /// Bytes of the area for measured durations in a thread block ([`crate::times`]), or 0 if durations are not measured.
    pub times_bytes: u64,
    /// Nonzero if the calling-context tree is measured as well: the greatest number of its nodes on a thread.
    pub nodes_max: u32,
    /// Nonzero if recursive calls have nodes of their own in that tree.
    pub unfolded: u32,
    /// What the agent is to measure with: a [`ClockKind`](crate::clock::ClockKind).
    pub clock: ClockCode,
    /// What a thread does when its ring of events is full: a [`Full`](crate::full::Full).
    pub trace_full: FullCode,
    /// Bytes of the ring of events in a thread block ([`crate::trace`]), a power of two, or 0 if calls are not traced.
    pub trace_bytes: u64,
    /// The least duration of a traced call, in ticks.
    pub trace_least: u64,
    /// If calls are measured and not traced: arcs whose calls take less than so many ticks are only counted. 0 if all are measured.
    pub short_below: u64,
    /// The number of ticks to which a thread may raise that limit for itself while its calls take too long.
    pub short_most: u64,
    /// The greatest number of traced calls that are open at the same time on a stack, or 0 if there is no limit.
    pub trace_depth: u32,
    /// Nonzero if plan files have fetches ([`crate::args`]), by which traced calls tell their arguments and results.
    pub trace_args: u32,
    /// Nonzero if the values of arguments and results are kept: [`ALONE`](crate::tally::ALONE), [`MEASURED`](crate::tally::MEASURED) or
    /// [`MEASURED_WITHOUT_RESULTS`](crate::tally::MEASURED_WITHOUT_RESULTS).
    pub tallies: u32,
    /// Nonzero if the plans are right where the processor keeps a shadow stack ([`crate::shadow_stack`]): exits are not hooked,
    /// and no call is made elsewhere than in its place.
    pub shadow_stacks: u32,
    /// Libraries that are hooked in no process of glibc's; zeros where there are fewer. The agent does not ask about them.
    pub left_out: [LeftOut; LEFT_OUT],
}

/// The number of entries in the table of samples outside of the program; a power of two.
pub const SAMPLES_MAX: usize = 1 << 14;

/// How often a sample by the agent's timer was at an address outside of the program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct SampleRecord {
    /// The runtime address, or 0 if the entry is not in use.
    pub pc: u64,
    /// The number of samples.
    pub count: u64,
}

/// The number of entries of the table of samples among which an address has its entry: those from
/// [`sample_entry`] on, and again from the first one of the table on.
pub const SAMPLE_PROBES: usize = 8;

/// Returns the index of the first entry of the table of samples that an address may have.
pub const fn sample_entry(address: u64) -> usize {
    // Fibonacci hashing: Knuth, The Art of Computer Programming, volume 3, section 6.4.
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SAMPLES_MAX.trailing_zeros())) as usize
}

/// The first bytes of a region file. After the orders comes the agent's report on its process;
/// [`crate::shared::RegionRef`] documents the writer of each of these fields.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct RegionHeader {
    /// The injector's part.
    pub orders: RegionOrders,
    /// The agent's progress: a [`State`].
    pub state: StateCode,
    /// Why the agent does not hook: a [`Trouble`], or 0.
    pub trouble: TroubleCode,
    /// errno of the system call that failed, or 0. After [`Trouble::Panic`], the line of [`RegionHeader::panic_file`].
    pub errno: i32,
    /// The process's number.
    pub pid: u32,
    /// The link address that the trouble concerns, or 0.
    pub trouble_address: u64,
    /// Runtime address minus link address.
    pub bias: u64,
    /// Runtime address at which the agent's library begins.
    pub agent_lo: u64,
    /// Runtime address at which the agent's library ends.
    pub agent_hi: u64,
    /// Duration of the agent's set-up, in nanoseconds.
    pub setup_ns: u64,
    /// Number of thread blocks given to threads so far.
    pub blocks: u64,
    /// Number of calls that could not be stored (no memory, file system full).
    pub lost_calls: u64,
    /// The number of threads that got no thread block.
    pub lost_threads: u64,
    /// Number of calls on a stack for which no shadow could be made: they were counted, but their exits were not
    /// hooked.
    pub bare_calls: u64,
    /// Number of timer samples at a program counter outside of text and arena.
    pub samples_outside: u64,
    /// Number of threads whose sampling timer could not be made.
    pub lost_timers: u64,
    /// Nonzero if the process has entered seccomp. From then on the agent makes no system calls, so it may be unable
    /// to store new arcs, and new threads and children are not counted.
    pub frozen: u64,
    /// The number of times that threads have had their system calls dispatched to themselves except for a range of addresses that does not
    /// contain the agent's. While they are, the agent makes no system calls there.
    pub dispatched: u64,
    /// What the agent will not see of the process, or has not seen: bits of [`UNSEEN_EXECUTED`] and so on.
    pub unseen: u64,
    /// Number of children that count in this file because they could not create a file of their own: see
    /// [`BlockHeader::process`].
    pub guests: u64,
    /// Number of children that are counted nowhere.
    pub lost_children: u64,
    /// The number of executed programs for which the agent could not reach the injector.
    pub lost_programs: u64,
    /// The number of libraries that the agent has not hooked, without the injector's having decided that.
    pub lost_libraries: u64,
    /// The libraries in [`RegionOrders::left_out`] that the process has loaded: bit n stands for the one with index n.
    pub left_out_seen: u64,
    /// Number of functions that Frida's gum has patched.
    pub frida_patched: u64,
    /// Duration of gum's work in nanoseconds, in addition to [`RegionHeader::setup_ns`].
    pub frida_ns: u64,
    /// Ticks of the clock that a measured call costs inside its interval, times 256.
    pub inside_256: u64,
    /// The same outside of it.
    pub outside_256: u64,
    /// How far from `inside_256` the overhead inside of the interval may be, depending on what the function does.
    pub spread_256: u64,
    /// Ticks that a call costs which is only counted, times 256.
    pub short_256: u64,
    /// The clock when the process was about to end, or 0 if the agent has not seen that.
    pub clock_at_end: u64,
    /// After [`Trouble::Panic`], the bytes of the source file's name. Zeros follow a shorter name; of a longer name,
    /// the field has the end.
    pub panic_file: [u64; PANIC_FILE_WORDS],
    /// The first ones of the `lost_libraries`. Of each, the first word has a [`Lost`] in its lower half and an errno, or 0, in the
    /// upper one, and is not 0 if the rest is there; the others have the path of the library, as that of `panic_file`.
    pub lost: [[u64; LOST_WORDS]; LOST_NAMED],
}

/// A bit of [`RegionHeader::unseen`]: programs that the process executes.
pub const UNSEEN_EXECUTED: u64 = 1;
/// A bit of [`RegionHeader::unseen`]: libraries that the process loads after its start.
pub const UNSEEN_LOADED: u64 = 2;
/// A bit of [`RegionHeader::unseen`]: programs that it has executed when it could open no more files.
pub const UNSEEN_WITHOUT_FILES: u64 = 4;

/// Words of [`RegionHeader::panic_file`].
pub const PANIC_FILE_WORDS: usize = 8;

coded! {
    /// The agent's progress.
    pub enum State as StateCode(u32) {
        /// The agent was never loaded.
        New = 0,
        /// The set-up has begun and not ended.
        SettingUp = 1,
        /// Hooks are in place.
        Armed = 2,
        /// The agent does not hook the program; [`RegionHeader::trouble`] has the reason.
        Refused = 3,
    }
}

coded! {
    /// Why the agent does not hook the program.
    pub enum Trouble as TroubleCode(u32) {
        /// The plan or region file could not be opened or mapped.
        Files = 1,
        /// Plan and agent are of different versions.
        Version = 2,
        /// The running program is not the one that was planned (AT_ENTRY or AT_PHDR differ).
        OtherProgram = 3,
        /// The arena's address range is in use, or memory is short.
        Arena = 4,
        /// The text in memory is not the text of the file.
        TextDiffers = 5,
        /// The text could not be made writable.
        Protect = 6,
        /// Memory for the set-up was refused.
        Memory = 7,
        /// The hooks of -finstrument-functions, which the plan took for the C library's empty ones, are defined
        /// elsewhere.
        Hooks = 8,
        /// The agent's code has panicked: see [`RegionHeader::panic_file`]. If the state is [`State::Armed`], the
        /// hooks were in place at that time, and the counts up to then are valid.
        Panic = 9,
        /// musl's dynamic linker could not be hooked.
        DynamicLinker = 10,
        /// AddressSanitizer is preloaded.
        AddressSanitizer = 11,
        /// No page that was written may become executable.
        NoNewCode = 12,
        /// The processor keeps a shadow stack for the process, or will, and the plan is not made for that.
        ShadowStack = 13,
    }
}

/// The start of a thread block. [`crate::shared::BlockRef`] documents the writer of each field.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct BlockHeader {
    /// Number of the thread that owns the thread block.
    pub tid: u32,
    /// Bit `SEGMENT_BIT + i`: overflow segment i is committed. [`COUNTER_BIT`]: the basic block counters are committed.
    pub committed: u32,
    /// Number of calls that could not be counted because this thread block had no room.
    pub lost_calls: u64,
    /// Number of threads that have used the thread block.
    pub owners: u32,
    /// If nonzero, the thread block belongs not to the file's own process but to a child with this number.
    pub process: u32,
    /// Number of the thread block in the region.
    pub index: u64,
    /// timer_create's id + 1, or 0.
    pub timer: u64,
    /// How often chunks of home slots were committed, several of them at once or a single one.
    pub pieces: u64,
    /// Bit i: chunk i of the program's home slots is committed. The first one contains this header.
    pub committed_chunks: [u64; SLOT_CHUNKS as usize / 64],
    /// What the agent's assembly knows of frames of the program's functions, and of those of libraries. Only the owner's calls use it.
    pub newest: [Newest; 2],
}

/// The number of frames that [`Newest`] describes.
pub const NEWEST: usize = 16;

/// What frames had in common with others that were found to be the newest live one: a frame in which the agent's assembly finds the same words
/// is taken for alive. The index is the low bits of the number of the frame's function.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Newest {
    /// The function and the link in the frame's cell, whose state is that of a standard frame that no jump has left.
    pub contents: [u64; NEWEST],
    /// The exit label in the frame's return slot, or 0 if there was no such frame yet.
    pub slots: [u64; NEWEST],
}

/// The number of chunks of the library slots.
pub const LIBRARY_CHUNKS: u64 = 40 << 10;
/// Bytes of the pages in front of the library slots that have a bit for each chunk that is committed, in words of 64. They reach no
/// file.
pub const LIBRARY_BITS: u64 = round_up(LIBRARY_CHUNKS / 8, PAGE);
/// Bytes of these pages and the library slots in a thread block in which libraries are counted. The slots are in chunks of one page, and
/// only chunks in which something is counted take memory.
pub const LIBRARY_BYTES: u64 = LIBRARY_BITS + LIBRARY_CHUNKS * PAGE;

/// The number of chunks of the libraries' basic block counters.
pub const LIBRARY_COUNTER_CHUNKS: u64 = 256 * 64;
/// Bytes of the libraries' basic block counters in a thread block: one page that has a bit for each chunk that is
/// committed, in words of 64, and then the counters, in chunks of one page. The first page reaches no file.
pub const LIBRARY_COUNTER_BYTES: u64 = (1 + LIBRARY_COUNTER_CHUNKS) * PAGE;

/// Offset of the table of recent arcs in a thread block: [`RECENT_ENTRIES`] words, in sets of [`RECENT_WAYS`]. A word's
/// lower half is the offset of the arc's slot or overflow entry from the start of the thread block, and its upper half is
/// the called function's number plus one; an empty word is 0. The table only saves searches: the key in the slot identifies
/// the arc, so readers of a file need not use the table.
pub const RECENT: u64 = PAGE;
/// Number of words in the table of recent arcs.
pub const RECENT_ENTRIES: u64 = 1024;
/// Number of words in each of the table's sets. An arc is stored in the first word of its set, whose old contents go to the
/// second.
pub const RECENT_WAYS: u64 = 2;
/// Multiplier of the table's hash: the index of an arc's set is the top bits of this times the sum of its key and function.
pub const RECENT_HASH: u32 = 0x9e37_79b1;
/// Number of low bits that are dropped from that product.
pub const RECENT_SHIFT: u32 = 32 - (RECENT_ENTRIES / RECENT_WAYS).trailing_zeros();

/// Returns the byte offset in a thread block of an arc's set in the table of recent arcs.
pub const fn recent(key: u64, function: u32) -> u64 {
    let hash = (key as u32).wrapping_add(function).wrapping_mul(RECENT_HASH) >> RECENT_SHIFT;
    RECENT + 8 * RECENT_WAYS * hash as u64
}

/// Offset of the first home slot in a thread block.
pub const SLOTS: u64 = RECENT + 8 * RECENT_ENTRIES;
/// The greatest number of chunks of the program's home slots.
pub const SLOT_CHUNKS: u64 = 64 * 64;
/// First bit of the overflow segments in [`BlockHeader::committed`].
pub const SEGMENT_BIT: u32 = 16;
/// Bit of the basic block counters in [`BlockHeader::committed`].
pub const COUNTER_BIT: u32 = 24;

/// A home slot: one arc of the function that the slot belongs to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Slot {
    /// Runtime return address, or one of the other keys ([`CALLER`], [`TAIL`], [`SITE`], [`ROOT`]); 0 in a free slot.
    pub key: u64,
    /// Number of calls.
    pub count: u64,
}

/// An arc whose home slots are in use by other arcs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Overflow {
    /// The key, as in [`Slot::key`].
    pub key: u64,
    /// Number of calls.
    pub count: u64,
    /// Number of the called function.
    pub function: u32,
    /// Padding, always 0.
    pub reserved: u32,
}

/// Number of overflow segments of a thread block.
pub const SEGMENTS: usize = 5;
/// Number of entries that one look-up inspects in a segment before it tries the next segment.
pub const PROBES: usize = 16;

/// Returns the number of entries of overflow segment `i`.
pub const fn segment_entries(i: usize) -> usize {
    1 << (10 + 2 * i)
}

/// Returns the offset of overflow segment `i` from the start of the thread block; a multiple of the page size.
pub const fn segment_offset(slot_bytes: u64, i: usize) -> u64 {
    let mut offset = round_up(SLOTS + slot_bytes, PAGE);
    let mut k = 0;
    while k < i {
        offset += segment_len(k);
        k += 1;
    }
    offset
}

/// Returns the size of overflow segment `i` in bytes; a multiple of the page size.
pub const fn segment_len(i: usize) -> u64 {
    round_up((segment_entries(i) * size_of::<Overflow>()) as u64, PAGE)
}

/// Returns the offset of the basic block counters from the start of the thread block; a multiple of the page size.
pub const fn counters_offset(slot_bytes: u64) -> u64 {
    segment_offset(slot_bytes, SEGMENTS)
}

/// Returns the offset of the pages with the bits of the library slots from the start of the thread block, or of what follows if there are no
/// such slots; a multiple of the page size.
pub const fn library_offset(slot_bytes: u64, counter_bytes: u64) -> u64 {
    counters_offset(slot_bytes) + round_up(counter_bytes, PAGE)
}

/// Returns the offset of the page with the bits of the libraries' basic block counters from the start of the thread block,
/// which follows `library_bytes` bytes of library slots and their bits; a multiple of the page size.
pub const fn library_counters_offset(slot_bytes: u64, counter_bytes: u64, library_bytes: u64) -> u64 {
    library_offset(slot_bytes, counter_bytes) + library_bytes
}

/// Returns the offset of the area for measured durations from the start of the thread block, which follows
/// `library_counter_bytes` bytes of the libraries' basic block counters; a multiple of the page size.
pub const fn times_offset(
    slot_bytes: u64,
    counter_bytes: u64,
    library_bytes: u64,
    library_counter_bytes: u64,
) -> u64 {
    library_counters_offset(slot_bytes, counter_bytes, library_bytes) + library_counter_bytes
}

/// Returns the offset of the ring of events from the start of the thread block, which follows `times_bytes` bytes for measured
/// durations; a multiple of the page size.
pub const fn trace_offset(times_offset: u64, times_bytes: u64) -> u64 {
    times_offset + times_bytes
}

/// Returns the number of bytes of a chunk of the program's home slots: a page, or more if that would make more than
/// [`SLOT_CHUNKS`] chunks.
pub const fn slot_chunk(slot_bytes: u64) -> u64 {
    round_up((SLOTS + slot_bytes).div_ceil(SLOT_CHUNKS), PAGE)
}

/// Returns the smallest multiple of `to` that is not less than `value`.
pub const fn round_up(value: u64, to: u64) -> u64 {
    value.div_ceil(to) * to
}

const _: () = {
    assert!(size_of::<RegionOrders>() == 216 + LEFT_OUT * size_of::<LeftOut>());
    assert!(size_of::<RegionHeader>() == size_of::<RegionOrders>() + 288 + LOST_NAMED * LOST_WORDS * 8);
    assert!(size_of::<LoadRecord>() == 88);
    assert!(size_of::<RegionHeader>() <= PAGE as usize);
    assert!(size_of::<BlockHeader>() == 1072);
    assert!(LIBRARY_CHUNKS.is_multiple_of(64));
    assert!(size_of::<BlockHeader>() <= RECENT as usize);
    assert!(recent(u64::MAX, u32::MAX) + 8 * RECENT_WAYS <= SLOTS && RECENT + 8 * RECENT_ENTRIES <= SLOTS);
    assert!(LIBRARY_COUNTER_CHUNKS / 8 <= PAGE);
    // Thunks and the agent's assembly address these fields. The assembly finds an arc by the table of recent arcs,
    // and treats an overflow entry as a slot.
    assert!(size_of::<Slot>() == 16);
    assert!(offset_of!(Slot, key) == 0);
    assert!(offset_of!(Slot, count) == 8);
    assert!(size_of::<Overflow>() == 24);
    assert!(offset_of!(Slot, key) == offset_of!(Overflow, key));
    assert!(offset_of!(Slot, count) == offset_of!(Overflow, count));
};
