//! The agent's facts about its program and the process: written once, as a whole, and never changed.
//!
//! A forked child does not change the [`Agent`] of its parent. It installs another one, and the old one stays valid
//! for the code that the fork has interrupted.
#![allow(
    unsafe_code,
    reason = "a header that nobody reads is a static; the plan's tables are indexed by its numbers"
)]

use crate::os::current::{Current, Reserved};
use crate::program::interned;
use crate::program::module::Module;
use core::cell::UnsafeCell;
use core::mem::{MaybeUninit, offset_of};
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::ask::ARENAS_SPAN;
use gprofinject_abi::clock::ClockCode;
use gprofinject_abi::full::Full;
use gprofinject_abi::plan::{FunctionRecord, HookModeCode, LIBRARIES, Labels, START_OF_CONTEXT};
use gprofinject_abi::region::{LEFT_OUT, LeftOut, PAGE, RegionHeader, RegionOrders};
use gprofinject_abi::shared::RegionRef;

/// Addresses are runtime addresses unless a field documents otherwise.
#[derive(Clone, Copy)]
pub(crate) struct Agent {
    /// Whether the set-up has reached the point at which it installs this value.
    pub(crate) is_set_up: bool,
    /// The program.
    pub(crate) program: Module,
    /// The header of the region file in which the process counts. In a child that is not followed, it is one that is
    /// never read.
    pub(crate) region: RegionRef,
    /// The injector's part of that header, as it was when the file was mapped.
    pub(crate) orders: RegionOrders,
    /// Whether the `wrgsbase` instruction may be used.
    pub(crate) fsgsbase: bool,
    /// The address at which the main thread's stack began.
    pub(crate) stack_end: u64,
    /// The lowest address that the main thread's stack may reach.
    pub(crate) stack_lo: u64,
    /// The main thread's control block.
    pub(crate) main_thread: u64,
    /// The C library's text.
    pub(crate) libc: (u64, u64),
    /// Whether shadow stacks are kept for the program's functions.
    pub(crate) both: bool,
    /// Whether functions may be entered with less stack than slow paths need: see [`crate::hot::small_stacks`].
    pub(crate) small_stacks: bool,
    /// Whether Frida's library is preloaded, here and in programs that are executed.
    pub(crate) frida: bool,
    /// The thread block of threads that have none yet: zeros.
    pub(crate) no_block: u64,
    /// The thread block of threads that cannot get one: also zeros.
    pub(crate) lost_block: u64,
    /// Samples per second that each thread's timer takes, or 0 if the agent does not sample.
    pub(crate) timer_rate: u32,
    /// The process's number.
    pub(crate) pid: u32,
    /// Whether this is a forked child that is not followed: its hooks work, but its counts are discarded.
    pub(crate) counts_nowhere: bool,
    /// Whether this is a forked child that counts in an ancestor's file because it could not create its own.
    pub(crate) guest: bool,
    /// Whether the region file is one of which thread blocks are mapped as a whole ([`RegionOrders::maps_whole`]).
    pub(crate) maps_whole: bool,
}

/// A region header that is never read, for a process that counts nowhere.
#[repr(transparent)]
struct Unread(UnsafeCell<MaybeUninit<RegionHeader>>);
// SAFETY: the header is accessed only through the atomics of a `RegionRef`.
unsafe impl Sync for Unread {}
static UNREAD: Unread = Unread(UnsafeCell::new(MaybeUninit::zeroed()));

/// Returns the header for a process that counts nowhere.
pub(crate) const fn unread_region() -> RegionRef {
    // SAFETY: a static lives as long as the process, zeros are a valid header, and only the `RegionRef` accesses it.
    unsafe { RegionRef::new(ptr::NonNull::new_unchecked(UNREAD.0.get().cast())) }
}

static NOT_SET_UP: Agent = Agent {
    is_set_up: false,
    program: Module::NONE,
    region: unread_region(),
    orders: RegionOrders {
        magic: [0; 8],
        version: 0,
        timer_rate: 0,
        histogram_offset: 0,
        text_bins: 0,
        arena_bins: 0,
        text_shift: 0,
        arena_shift: 0,
        blocks_offset: 0,
        block_len: 0,
        slot_bytes: 0,
        slot_chunk: 0,
        counter_bytes: 0,
        blocks_max: 0,
        follow: 0,
        plan: 0,
        loads_offset: 0,
        library_bytes: 0,
        elsewhere_offset: 0,
        library_hooks: HookModeCode(0),
        library_counter_bytes: 0,
        maps_whole: 0,
        times_bytes: 0,
        nodes_max: 0,
        unfolded: 0,
        clock: ClockCode(0),
        trace_full: Full::Wait.code(),
        trace_bytes: 0,
        trace_least: 0,
        short_below: 0,
        short_most: 0,
        trace_depth: 0,
        trace_args: 0,
        tallies: 0,
        shadow_stacks: 0,
        left_out: [LeftOut { file: [0; 5], name: 0 }; LEFT_OUT],
    },
    fsgsbase: false,
    stack_end: 0,
    stack_lo: 0,
    main_thread: 0,
    libc: (0, 0),
    both: false,
    small_stacks: false,
    frida: false,
    no_block: 0,
    lost_block: 0,
    timer_rate: 0,
    pid: 0,
    counts_nowhere: false,
    guest: false,
    maps_whole: false,
};

/// The current value. Eight generations of forked children replace it without a system call.
static AGENT: Current<Agent, 8> = Current::new(&NOT_SET_UP);

/// The facts that the assembly of `hot/gate.rs` needs of a set of hooked functions. They are the same in all forked
/// children, so they are written once, before the first hook of the set is in place, and gates read them directly.
#[repr(C)]
pub(crate) struct GateFacts {
    /// The address of the record of a function with number 0, if there were one.
    pub(crate) functions: AtomicU64,
    /// The addresses between which the arenas are. Between those of libraries there may be anything else; see [`LABELS`].
    pub(crate) arena_lo: AtomicU64,
    pub(crate) arena_hi: AtomicU64,
    /// The address to which the offsets in function records and the pages of [`LABELS`] are relative.
    pub(crate) base: AtomicU64,
    /// The address of [`LABELS`]; 0 for the program, between whose addresses there are only exit labels.
    pub(crate) pages: AtomicU64,
    pub(crate) both: AtomicU64,
}

impl GateFacts {
    const fn new() -> GateFacts {
        GateFacts {
            functions: AtomicU64::new(0),
            arena_lo: AtomicU64::new(0),
            arena_hi: AtomicU64::new(0),
            base: AtomicU64::new(0),
            pages: AtomicU64::new(0),
            both: AtomicU64::new(0),
        }
    }

    /// Returns the address of the addresses between which the exit labels of the set lie: see [`Labels`].
    pub(crate) fn labels(&'static self) -> u64 {
        const {
            const START: usize = offset_of!(GateFacts, arena_lo);
            assert!(offset_of!(Labels, start) == 0);
            assert!(offset_of!(GateFacts, arena_hi) - START == offset_of!(Labels, end));
            assert!(offset_of!(GateFacts, base) - START == offset_of!(Labels, base));
            assert!(offset_of!(GateFacts, pages) - START == offset_of!(Labels, pages));
        }
        (&raw const self.arena_lo) as u64
    }
}

/// For the functions of the program.
pub(crate) static GATE_FACTS: GateFacts = GateFacts::new();
/// For the functions of libraries.
pub(crate) static LIBRARY_GATE_FACTS: GateFacts = GateFacts::new();

/// One bit for each page of the addresses in which the arenas of libraries may lie: whether it contains exit labels of a
/// library. Other pages between the arenas contain copies of counted functions, or belong to the program. The bits of a
/// library are set before its hooks are in place, and stay set.
pub(crate) static LABELS: [AtomicU64; (ARENAS_SPAN / PAGE / 64) as usize] =
    [const { AtomicU64::new(0) }; (ARENAS_SPAN / PAGE / 64) as usize];

/// Notes that these pages contain the exit labels of a library, in an arena that ends at `end`.
pub(crate) fn note_labels(labels: Range<u64>, end: u64) {
    let facts = &LIBRARY_GATE_FACTS;
    for page in pages_of(labels.start)..pages_of(labels.end.next_multiple_of(PAGE)) {
        if let Some(word) = LABELS.get((page / 64) as usize) {
            word.fetch_or(1 << (page % 64), Ordering::Relaxed);
        }
    }
    // A thread that sees one of the new bounds and not the other sees fewer arenas, none of which has been used.
    if facts.arena_hi.load(Ordering::Relaxed) == 0 {
        facts.arena_lo.store(labels.start, Ordering::Relaxed);
    }
    facts.arena_lo.fetch_min(labels.start, Ordering::Relaxed);
    facts.arena_hi.fetch_max(end, Ordering::Relaxed);
}

/// Returns the number of whole pages before an address, from the first address on at which an arena of a library may lie.
fn pages_of(address: u64) -> u64 {
    address.wrapping_sub(LIBRARY_GATE_FACTS.base.load(Ordering::Relaxed)) / PAGE
}

/// Returns whether an address lies in the thunks of a library. Integer code only; see [`crate::hot::gate`].
pub(crate) fn in_library_thunks(address: u64) -> bool {
    let page = pages_of(address);
    match LABELS.get((page / 64) as usize) {
        Some(word) => word.load(Ordering::Relaxed) & 1 << (page % 64) != 0,
        None => false,
    }
}

/// Returns a place for a new value, or `None` if there is no memory for one.
pub(crate) fn reserve() -> Option<Reserved<Agent>> {
    AGENT.reserve()
}

/// Returns the addresses between which the arenas of libraries lie. Integer code only; see [`crate::hot::gate`].
pub(crate) fn libraries_arenas() -> Range<u64> {
    LIBRARY_GATE_FACTS.arena_lo.load(Ordering::Relaxed)..LIBRARY_GATE_FACTS.arena_hi.load(Ordering::Relaxed)
}

/// Returns where the records of functions are: see [`gprofinject_abi::attach::Order::records_of_functions`].
pub(crate) fn records_of_functions() -> [[u64; 2]; 2] {
    [&GATE_FACTS, &LIBRARY_GATE_FACTS]
        .map(|facts| [facts.functions.load(Ordering::Relaxed), facts.base.load(Ordering::Relaxed)])
}

impl Agent {
    /// Returns the current value.
    #[inline(always)]
    pub(crate) fn get() -> &'static Agent {
        AGENT.get()
    }

    /// Copies the facts that gates need to [`GATE_FACTS`].
    pub(crate) fn tell_gates(&self) {
        let program = &self.program;
        GATE_FACTS.functions.store(program.functions.as_ptr() as u64, Ordering::Relaxed);
        GATE_FACTS.arena_lo.store(program.arena_lo, Ordering::Relaxed);
        if program.arena_lo != 0 {
            interned::set_arena(program.arena_lo);
        }
        GATE_FACTS.arena_hi.store(program.arena_hi, Ordering::Relaxed);
        GATE_FACTS.base.store(program.base, Ordering::Relaxed);
        GATE_FACTS.both.store(self.both.into(), Ordering::Relaxed);
    }

    /// Returns the record of a function of the program or of a library.
    pub(crate) fn function(&self, number: u32) -> &'static FunctionRecord {
        let facts = if number < LIBRARIES { &GATE_FACTS } else { &LIBRARY_GATE_FACTS };
        let table = facts.functions.load(Ordering::Relaxed) as *const FunctionRecord;
        // SAFETY: thunks and frames hold numbers of hooked functions only, which index these tables, whose start is that
        // of number 0. Records stay mapped as long as the process lives.
        unsafe { &*table.wrapping_add(number as usize) }
    }

    /// Returns the address to which the offsets in the record of this function are relative.
    pub(crate) fn base(&self, number: u32) -> u64 {
        let facts = if number < LIBRARIES { &GATE_FACTS } else { &LIBRARY_GATE_FACTS };
        facts.base.load(Ordering::Relaxed)
    }

    /// Returns whether an address lies in thunks. A return slot that contains such an address is that of a live frame.
    pub(crate) fn in_thunks(&self, address: u64) -> bool {
        self.program.in_arena(address) || in_library_thunks(address)
    }

    /// Returns whether a return address is the one that the C library gives to signal handlers. Integer code only; see
    /// [`crate::hot::gate`].
    pub(crate) fn is_restorer(&self, return_address: u64) -> bool {
        // glibc's __restore_rt: mov rax, 15; syscall. musl's: mov eax, 15; syscall.
        self.libc_reads(return_address, &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05])
            || cfg!(feature = "standalone")
                && self.libc_reads(return_address, &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05])
    }

    /// Returns whether a return address is the one that glibc's makecontext gives to the first function of a context,
    /// which begins a stack of its own. Integer code only; see [`crate::hot::gate`].
    pub(crate) fn is_start_of_context(&self, return_address: u64) -> bool {
        self.libc_reads(return_address, &START_OF_CONTEXT)
    }

    /// Returns whether the C library's text has these bytes at an address.
    fn libc_reads(&self, address: u64, bytes: &[u8]) -> bool {
        let (lo, hi) = self.libc;
        if address < lo || address >= hi || hi - address < bytes.len() as u64 {
            return false;
        }
        // The bytes are compared one by one, because a comparison of slices may use vector registers.
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: the address lies in the C library's text, which is readable and never unmapped.
            if unsafe { *(address as *const u8).add(i) } != *byte {
                return false;
            }
        }
        true
    }
}
