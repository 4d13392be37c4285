//! The region file: what one process counted. It outlives the process.
//!
//! ```text
//! 0                   RegionHeader (one page)
//! histogram_offset    u32 bins: `text_bins` of the text from `PlanHeader::text_lo` on, `1 << text_shift` bytes
//!                     each, then `arena_bins` of the arena, `1 << arena_shift` bytes each
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
//! counters            u64 *: how often blocks were entered, `counter_bytes` bytes
//! ```
//!
//! The file is sparse; the injector gives it its full length. The agent commits a *chunk* of a block
//! (MADV_POPULATE_WRITE, then a shared mapping over the zeros that stood there) when the first arc is to
//! be stored in it, so that a full file system is found out by an error code and not by a SIGBUS. Parts
//! that were never committed read as zeros.
//!
//! Every word of a block has one writer, the thread that owns the block; signal handlers of that thread
//! interrupt it but never run beside it. Readers may look at any time: a key is stored once, before its
//! count, and never changed but for the mark of linked calls ([`plain_key`]); counts only grow.

use core::mem::offset_of;

/// What an arc's key may be besides a runtime return address: `CALLER` with the number of the calling
/// function, for calls out of code that is not hooked; `TAIL` with the number of the function that left
/// by a jump; `SITE` with the link address of such a jump; `ROOT` where nothing hooked was running.
pub const CALLER: u64 = 1 << 63;
pub const TAIL: u64 = 1 << 62;
pub const SITE: u64 = 1 << 61;
pub const ROOT: u64 = u64::MAX;

/// In the key of a home slot, beside a return address: calls from there are *linked*, so that the thunk does not find
/// the key (see the agent's `far.rs`). From [`LINKS_SHIFT`] on stands how many more are, up to [`LINKS`].
pub const LINKED: u64 = 1 << 60;
pub const LINKS_SHIFT: u32 = 47;
pub const LINKS: u64 = (1 << 13) - 1;

/// Whether a key is that of linked calls.
pub const fn is_linked(key: u64) -> bool {
    key & (CALLER | TAIL | SITE | LINKED) == LINKED
}

/// The key as it was before its calls were linked. User addresses have 47 bits.
pub const fn plain_key(key: u64) -> u64 {
    if is_linked(key) { key & ((1 << LINKS_SHIFT) - 1) } else { key }
}

pub const MAGIC: [u8; 8] = *b"gpi-regn";
pub const PAGE: u64 = 4096;

#[repr(C)]
#[derive(Debug)]
pub struct RegionHeader {
    // Written by the injector before the program starts.
    pub magic: [u8; 8],
    /// [`crate::VERSION`].
    pub version: u32,
    /// Samples per second of CPU time that the agent takes by timer; 0: none, the injector samples.
    pub timer_rate: u32,
    pub histogram_offset: u64,
    pub text_bins: u64,
    pub arena_bins: u64,
    /// Binary logarithm of the bytes of text that a bin covers. No bin covers bytes of two functions.
    pub text_shift: u32,
    /// The same of the arena.
    pub arena_shift: u32,
    pub blocks_offset: u64,
    pub block_len: u64,
    /// Bytes of home slots in a block.
    pub slot_bytes: u64,
    /// Bytes committed at a time in the home slots; a multiple of the page size.
    pub slot_chunk: u64,
    /// Bytes of block counters in a block, committed as a whole when a thread gets the block.
    pub counter_bytes: u64,
    /// Blocks that the (sparse) file has room for: its length is `blocks_offset + blocks_max * block_len`.
    pub blocks_max: u64,
    /// Not 0: children are profiled as well, and programs that the process executes.
    pub follow: u32,
    /// Number of the plan in the injector.
    pub plan: u32,

    // Written by the agent.
    /// A [`State`].
    pub state: u32,
    /// A [`Trouble`] that kept the agent from hooking, else 0.
    pub trouble: u32,
    /// errno of the failed system call, or 0.
    pub errno: i32,
    pub pid: u32,
    /// Link address that the trouble is about, or 0.
    pub trouble_address: u64,
    /// Runtime address minus link address.
    pub bias: u64,
    /// Nanoseconds that the agent's set-up took.
    pub setup_ns: u64,
    /// Thread blocks handed out so far.
    pub blocks: u64,
    /// Calls that could not be stored (no memory, file system full).
    pub lost_calls: u64,
    /// Threads that got no block.
    pub lost_threads: u64,
    /// Calls on a stack for which no shadow could be had: counted, but their exit was not hooked.
    pub bare_calls: u64,
    /// Timer samples at a PC outside text and arena.
    pub samples_outside: u64,
    /// Threads whose sampling timer could not be made.
    pub lost_timers: u64,
    /// Not 0: the process entered seccomp. From then on the agent makes no system call, so new arcs may
    /// find no place, and threads and children are not counted.
    pub frozen: u64,
    /// Children that count in this file because they could not make one: see [`BlockHeader::process`].
    pub guests: u64,
    /// Children that are counted nowhere.
    pub lost_children: u64,
    /// Programs that could not be asked for when they were executed.
    pub lost_programs: u64,
    /// Functions that Frida's gum has patched.
    pub frida_patched: u64,
    /// Nanoseconds that it took for them, beside [`RegionHeader::setup_ns`].
    pub frida_ns: u64,
}

#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The agent was never loaded.
    New = 0,
    /// Set-up began and did not come to an end.
    SettingUp = 1,
    /// Hooks are in place.
    Armed = 2,
    /// The agent left the program as it was; see `trouble`.
    Refused = 3,
}

#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    None = 0,
    /// The plan or region file could not be opened or mapped.
    Files = 1,
    /// Plan and agent are of different versions.
    Version = 2,
    /// The running program is not the one that was planned (AT_ENTRY or AT_PHDR differ).
    OtherProgram = 3,
    /// The arena's place is taken, or memory is short.
    Arena = 4,
    /// The text in memory is not the text of the file.
    TextDiffers = 5,
    /// The text could not be made writable.
    Protect = 6,
    /// Memory for the set-up was refused.
    Memory = 7,
    /// Somebody defines the hooks of -finstrument-functions, which the plan took for the C library's empty ones.
    Hooks = 8,
}

#[repr(C)]
#[derive(Debug)]
pub struct BlockHeader {
    /// Thread that owns the block.
    pub tid: u32,
    /// Bit i: slot chunk i is committed; bit `SEGMENT_BIT + i`: overflow segment i is; [`COUNTER_BIT`].
    pub committed: u32,
    /// Calls that found no room in this block.
    pub lost_calls: u64,
    /// Threads that have used the block.
    pub owners: u32,
    /// Not 0: the block is not of the file's own process but of a child, with this number.
    pub process: u32,
    /// Number of the block in the region.
    pub index: u64,
    /// timer_create's id + 1, or 0.
    pub timer: u64,
}

/// Offset of the table of recent arcs in a block: [`RECENT_ENTRIES`] words, each with the offset of the
/// arc's slot or overflow entry from the start of the block in its lower half, and the called function's
/// number plus one in its upper half; 0: empty. It saves the search, and means nothing to readers: which arc
/// it is says the key in the slot.
pub const RECENT: u64 = 128;
pub const RECENT_ENTRIES: u64 = 256;
/// The place of an arc in the table is the top bits of this times the sum of its key and function.
pub const RECENT_HASH: u32 = 0x9e37_79b1;
pub const RECENT_SHIFT: u32 = 32 - RECENT_ENTRIES.trailing_zeros();

/// Offset of an arc's word in the table of recent arcs.
pub const fn recent(key: u64, function: u32) -> u64 {
    let hash = (key as u32).wrapping_add(function).wrapping_mul(RECENT_HASH) >> RECENT_SHIFT;
    RECENT + 8 * hash as u64
}

/// Offset of the first home slot in a block.
pub const SLOTS: u64 = 4096;
/// Most chunks that the home slots are committed in.
pub const SLOT_CHUNKS: u64 = 8;
/// First bit of overflow segments in [`BlockHeader::committed`].
pub const SEGMENT_BIT: u32 = 16;
/// Bit of the block counters.
pub const COUNTER_BIT: u32 = 24;

/// A home slot: one arc of the function that the slot belongs to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Runtime return address, or [`CALLER`] | number, or [`ROOT`]; 0: free.
    pub key: u64,
    pub count: u64,
}

/// An arc that found its home slots taken.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overflow {
    /// As [`Slot::key`].
    pub key: u64,
    pub count: u64,
    /// Number of the called function.
    pub function: u32,
    pub reserved: u32,
}

/// Overflow segments of a block.
pub const SEGMENTS: usize = 5;
/// Entries that one look-up inspects in a segment before it goes on to the next one.
pub const PROBES: usize = 16;

/// Entries of overflow segment `i`.
pub const fn segment_entries(i: usize) -> usize {
    1 << (10 + 2 * i)
}

/// Offset of overflow segment `i` from the start of the block; a multiple of the page size.
pub const fn segment_offset(slot_bytes: u64, i: usize) -> u64 {
    let mut offset = round_up(SLOTS + slot_bytes, PAGE);
    let mut k = 0;
    while k < i {
        offset += segment_len(k);
        k += 1;
    }
    offset
}

/// Bytes of overflow segment `i`; a multiple of the page size.
pub const fn segment_len(i: usize) -> u64 {
    round_up((segment_entries(i) * size_of::<Overflow>()) as u64, PAGE)
}

/// Offset of the block counters from the start of the block; a multiple of the page size.
pub const fn counters_offset(slot_bytes: u64) -> u64 {
    segment_offset(slot_bytes, SEGMENTS)
}

/// Bytes of a thread block with `slot_bytes` bytes of home slots and `counter_bytes` bytes of block counters.
pub const fn block_len(slot_bytes: u64, counter_bytes: u64) -> u64 {
    counters_offset(slot_bytes) + round_up(counter_bytes, PAGE)
}

/// Bytes of home slots committed at a time: 64 KiB, or more where that would make too many chunks.
pub const fn slot_chunk(slot_bytes: u64) -> u64 {
    let even = round_up((SLOTS + slot_bytes).div_ceil(SLOT_CHUNKS), PAGE);
    if even < 65536 { 65536 } else { even }
}

pub const fn round_up(value: u64, to: u64) -> u64 {
    value.div_ceil(to) * to
}

const _: () = {
    assert!(size_of::<RegionHeader>() <= PAGE as usize);
    assert!(size_of::<BlockHeader>() <= RECENT as usize);
    assert!(recent(u64::MAX, u32::MAX) + 8 <= SLOTS && RECENT + 8 * RECENT_ENTRIES <= SLOTS);
    // What finds a slot by the table takes an overflow entry for one.
    assert!(offset_of!(Slot, key) == offset_of!(Overflow, key));
    assert!(offset_of!(Slot, count) == offset_of!(Overflow, count));
    assert!(size_of::<Slot>() == 16);
    assert!(size_of::<Overflow>() == 24);
};
