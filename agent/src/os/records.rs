//! The records of the threads of a standalone program, to which the base of gs leads.
//!
//! A new thread inherits its parent's gs. The system call that makes it therefore leads to the agent
//! ([`crate::process::calls`]), which gives it a record of its own before any of its code runs. When a thread has ended,
//! another one gets its record.
//!
//! The threads of a process that was already running get their records from the injector, which sets their gs
//! ([`of_running`]).
#![allow(unsafe_code, reason = "records are mapped, and reached by their addresses")]

use crate::os::memory;
use crate::os::record::{CLAIMED, Record};
use crate::os::task;
use crate::os::words::SLOW_STACK_FREE;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gprofinject_abi::plan::ThreadWords;

/// The number of records for which there is room. Pages that are not used take no memory.
const MOST: u64 = 1 << 18;
/// The number of bytes of address space for records at most.
const SPACE: u64 = 1 << 36;
/// The number of records that are checked for a dead thread each time a thread is made.
const REUSE_LOOKS: u64 = 8;

/// The main thread's record.
#[repr(transparent)]
pub(crate) struct Main(UnsafeCell<Record>);

// SAFETY: the record is accessed by the main thread, through gs; and by a thread that carries out an order before the
// threads have records ([`borrow_main`]), when the main thread does not know of it yet.
unsafe impl Sync for Main {}

const ZEROS: ThreadWords = ThreadWords {
    block: 0,
    cells: 0,
    last: 0,
    first_frame: 0,
    landing: 0,
    stack_lo: 0,
    stack_hi: 0,
    library_last: 0,
    deep: 0,
    deep_from: 0,
    clear_from: 0,
    clear_to: 0,
    vain: 0,
    bare: 0,
};

pub(crate) static MAIN: Main = Main(UnsafeCell::new(Record {
    words: ZEROS,
    own: 0,
    stack: [0; 2],
    tid: AtomicU32::new(CLAIMED),
    reserved: 0,
    shared_stack: [[0; 2]; 2],
    slow_stack: 0,
    dispatch: AtomicU64::new(0),
    free: [0; 6],
    waiting: [0; 3],
}));

/// The first record, or 0 as long as there are none. Stored once, before the program runs.
static FIRST: AtomicU64 = AtomicU64::new(0);
/// The number of records for which there is room, and the bytes from one to the next. Stored once, before the program runs.
static ROOM: AtomicU64 = AtomicU64::new(0);
static STRIDE: AtomicU64 = AtomicU64::new(0);
/// The number of records that have been used.
static MADE: AtomicU64 = AtomicU64::new(0);
/// The words with which a thread begins: `block`, `cells` and `library_last`. Stored once, before the program runs.
static WORDS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Reserves the records of later threads. If `behind` is not 0, each record is the start of that many bytes, which
/// belong to the thread as well, and the main thread's record is moved to such a place.
///
/// # Errors
/// Returns the error number of mmap.
pub(crate) fn reserve(behind: u64) -> Result<(), i32> {
    let stride = if behind == 0 { size_of::<Record>() as u64 } else { behind };
    let room = MOST.min(SPACE / stride);
    let first = memory::map_zeros(room * stride, memory::PROT_READ | memory::PROT_WRITE)?;
    ROOM.store(room, Ordering::Relaxed);
    STRIDE.store(stride, Ordering::Relaxed);
    FIRST.store(first, Ordering::Relaxed);
    if behind != 0 {
        let main = claim(room);
        // SAFETY: the main thread is the only one, and it has claimed the record.
        unsafe {
            (*main).words = (*MAIN.0.get()).words;
            (*main).own = main as u64;
            (*main).tid.store(task::getpid(), Ordering::Release);
        }
        task::set_gs(main as u64)?;
    }
    Ok(())
}

/// Makes the main thread's record state that it is the main thread's.
pub(crate) fn begin_main() {
    // SAFETY: the record is never unmapped, and its number is an atomic.
    unsafe { (*MAIN.0.get()).tid.store(task::getpid(), Ordering::Release) };
}

/// Makes the calling thread, which has no record and carries out an order, use the main thread's. The injector restores
/// the thread's gs after the order.
///
/// # Errors
/// Returns the error number of arch_prctl.
pub(crate) fn borrow_main() -> Result<(), i32> {
    let main = MAIN.0.get();
    // SAFETY: no thread has a record yet, and all threads but one that carry out orders are stopped.
    unsafe { (*main).own = main as u64 };
    task::set_gs(main as u64)
}

/// Returns the addresses at which the records begin and end, without the main thread's first one.
pub(crate) fn extent() -> [u64; 2] {
    let first = FIRST.load(Ordering::Relaxed);
    [first, first + ROOM.load(Ordering::Relaxed) * STRIDE.load(Ordering::Relaxed)]
}

/// Returns the address of the record of a stopped thread, whose base of gs is `gs`: the one that it has, or one that it is
/// given. A thread that was made while the program's system calls did not lead to the agent has the record of another one.
/// `stack` returns the extent of the thread's stack, or zeros if it is not known.
pub(crate) fn of_running(tid: u32, gs: u64, stack: impl FnOnce() -> [u64; 2]) -> u64 {
    let main = MAIN.0.get() as u64;
    let [lo, hi] = extent();
    let stride = STRIDE.load(Ordering::Relaxed).max(1);
    let is_record = gs == main || (lo..hi).contains(&gs) && (gs - lo).is_multiple_of(stride);
    // SAFETY: the address is that of a record, all of which are mapped, and its number is an atomic.
    if is_record && unsafe { (*(gs as *const Record)).tid.load(Ordering::Acquire) } == tid {
        return gs;
    }
    if tid == task::getpid() && gs == 0 {
        begin_main();
        return main;
    }
    let record = of_new_thread(stack());
    // SAFETY: the record was claimed for this thread.
    unsafe { (*(record as *const Record)).tid.store(tid, Ordering::Release) };
    record
}

/// Sets the words with which later threads begin.
pub(crate) fn set_first_words(block: u64, cells: u64, library_last: u64) {
    for (place, value) in WORDS.iter().zip([block, cells, library_last]) {
        place.store(value, Ordering::Relaxed);
    }
}

/// Returns the address of the record of a thread that is about to be made, whose stack has this extent (zeros if it is
/// not known). If there are no records left, the threads share one, which has words of its own: their calls are counted,
/// and some callers of callbacks may be wrong.
pub(crate) fn of_new_thread(stack: [u64; 2]) -> u64 {
    let record = claim(ROOM.load(Ordering::Relaxed));
    let words = ThreadWords {
        block: WORDS[0].load(Ordering::Relaxed),
        cells: WORDS[1].load(Ordering::Relaxed),
        library_last: WORDS[2].load(Ordering::Relaxed),
        ..ZEROS
    };
    // SAFETY: the record is one of the mapped ones, and this thread has claimed it: no other one accesses it.
    unsafe {
        (*record).words = words;
        (*record).own = record as u64;
        (*record).stack = stack;
        (*record).shared_stack = [[0; 2]; 2];
        if (*record).slow_stack != 0 {
            (*record).slow_stack |= SLOW_STACK_FREE;
        }
        (*record).dispatch = AtomicU64::new(0);
    }
    record as u64
}

/// Returns a record that no other thread has, or the last one, which any number of threads may share.
fn claim(room: u64) -> *mut Record {
    let (first, stride) = (FIRST.load(Ordering::Relaxed), STRIDE.load(Ordering::Relaxed));
    let record = |number: u64| (first + number * stride) as *mut Record;
    // SAFETY: only numbers below `room` are used, for which records are mapped.
    let tid = |number: u64| unsafe { &(*record(number)).tid };
    /// The number at which the next search begins. It orders nothing: each record states by itself whether it is free.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let last = room.saturating_sub(1);
    let made = MADE.load(Ordering::Acquire).min(last);
    let pid = task::getpid();
    for _ in 0..made.min(REUSE_LOOKS) {
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % made;
        let old = tid(number).load(Ordering::Acquire);
        if old == CLAIMED || old != 0 && task::thread_lives(pid, old) {
            continue;
        }
        if tid(number).compare_exchange(old, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return record(number);
        }
    }
    loop {
        let number = MADE.fetch_add(1, Ordering::AcqRel).min(last);
        // Another thread may have found the record between the two steps.
        let claimed = tid(number).compare_exchange(0, CLAIMED, Ordering::AcqRel, Ordering::Relaxed);
        if claimed.is_ok() || number == last {
            return record(number);
        }
    }
}

/// In a forked child, whose only thread has the same record as in its parent: makes the record the child's.
pub(crate) fn begin_child() {
    let record = crate::os::words::thread_pointer() as *const Record;
    // SAFETY: the record is the calling thread's.
    unsafe { (*record).tid.store(task::gettid(), Ordering::Release) };
}
