//! Threads that share their thread words with others.
//!
//! A child of `clone(CLONE_VM)` that gets no thread area of its own (no CLONE_SETTLS) begins with its parent's thread pointer, and so
//! with its parent's thread words. If both counted in the thread block to which these lead, they would lose each other's counts, and
//! destroy each other's chain of open calls. So before such a child is made, the word for the thread block becomes the address of a
//! block of zeros, which no thread writes to. There, no thunk and no gate finds what it looks for, so every
//! call takes the slow path. The slow path asks the kernel which thread it is in, and uses the thread block that this thread has in a
//! table. Frames are kept in cells as in other threads: cells are found by the stack address, and the threads have different stacks.
//! The words for the last event may be another thread's, as they may be another coroutine's in one thread.
//!
//! When only one of the threads is left, the word leads to its own thread block again. A child of vfork needs none of this, because its
//! parent waits for it.
//!
//! In a standalone program, such a child gets thread words of its own by gs.
//!
//! This is integer code; see [`crate::hot::gate`].

use crate::os::kernel;
use crate::os::memory;
use crate::os::task;
use crate::os::words;
use crate::program::agent::Agent;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A thread that shares its thread words.
struct Sharer {
    /// The thread's number: 0 if this entry is free, [`EXPECTED`], or [`CLAIMED`]. Stored with `Release` when the other fields are
    /// complete, and loaded with `Acquire`.
    tid: AtomicU32,
    /// The thread's number as its parent knows it, or 0 if no parent has reported it. In another PID namespace the two differ.
    known_as: AtomicU32,
    /// The address of the thread words that it shares.
    words: AtomicU64,
    /// The address of its thread block, or [`Agent::no_block`] if it has none yet. Only the thread itself and its signal handlers change
    /// it once the entry is complete.
    block: AtomicU64,
}

/// A thread that is about to be made, or that has not called a hooked function yet.
const EXPECTED: u32 = u32::MAX;
/// A thread is filling the entry.
const CLAIMED: u32 = u32::MAX - 1;

/// The greatest number of threads in the table. The calls of further ones are counted as lost.
const MOST: usize = 128;

static SHARERS: [Sharer; MOST] = [const {
    Sharer {
        tid: AtomicU32::new(0),
        known_as: AtomicU32::new(0),
        words: AtomicU64::new(0),
        block: AtomicU64::new(0),
    }
}; MOST];

/// The number of entries that have been used, at most.
static USED: AtomicU32 = AtomicU32::new(0);

/// Whether a thread was made in a PID namespace of its own. Threads there cannot ask for the others, so the words stay shared.
static IS_DIVIDED: AtomicBool = AtomicBool::new(false);

/// The address of the block of zeros to which shared words lead, or 1 as long as there is none.
static SHARED_BLOCK: AtomicU64 = AtomicU64::new(1);

/// Returns whether words that lead to this block are shared.
#[inline(always)]
pub(crate) fn is_shared(block: u64) -> bool {
    block == SHARED_BLOCK.load(Ordering::Relaxed)
}

/// Returns the block of zeros to which shared words lead, or the one of threads that cannot get a thread block if there is no memory.
fn shared_block(agent: &Agent) -> u64 {
    let known = SHARED_BLOCK.load(Ordering::Relaxed);
    if known != 1 {
        return known;
    }
    let access = memory::PROT_READ | memory::PROT_WRITE;
    let Ok(made) = memory::map_zeros(agent.orders.block_len, access) else { return agent.lost_block };
    // If another thread was first, this mapping is not used.
    match SHARED_BLOCK.compare_exchange(1, made, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => made,
        Err(first) => first,
    }
}

/// The calls between two examinations of whether the other threads have ended.
const PATIENCE: u32 = 1024;

/// Returns all entries that have been used.
fn all() -> impl Iterator<Item = &'static Sharer> {
    SHARERS.iter().take(USED.load(Ordering::Acquire) as usize)
}

/// Returns the entry of a thread with these words. `tid` may also be [`EXPECTED`].
fn find(words: u64, tid: u32) -> Option<&'static Sharer> {
    all().find(|sharer| {
        sharer.tid.load(Ordering::Acquire) == tid && sharer.words.load(Ordering::Relaxed) == words
    })
}

/// Fills a free entry, and returns it. Returns `None` if there is none.
fn add(words: u64, tid: u32, block: u64) -> Option<&'static Sharer> {
    let (sharer, number) = SHARERS.iter().zip(1..).find(|(sharer, _)| {
        sharer.tid.load(Ordering::Relaxed) == 0
            && sharer.tid.compare_exchange(0, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    })?;
    USED.fetch_max(number, Ordering::AcqRel);
    sharer.known_as.store(0, Ordering::Relaxed);
    sharer.words.store(words, Ordering::Relaxed);
    sharer.block.store(block, Ordering::Relaxed);
    sharer.tid.store(tid, Ordering::Release);
    Some(sharer)
}

/// Makes the words of the calling thread shared, because it is about to make a thread that begins with them. `owner` and `block` are the
/// thread to which the words have belonged, and its thread block; they do not matter if the words are shared already. Returns the
/// number of the new thread's entry, for [`born`], or [`NO_ENTRY`].
pub(crate) fn expect(agent: &Agent, owner: u32, block: u64, is_divided: bool) -> u64 {
    let words = words::get();
    IS_DIVIDED.fetch_or(is_divided, Ordering::Relaxed);
    if !is_shared(words.block().load(Ordering::Relaxed)) {
        add(words.address(), owner, block);
        words.block().store(shared_block(agent), Ordering::Release);
    }
    match add(words.address(), EXPECTED, agent.no_block) {
        Some(child) => SHARERS.iter().position(|sharer| core::ptr::eq(sharer, child)).unwrap_or(MOST) as u64,
        None => NO_ENTRY,
    }
}

/// In place of an entry's number.
pub(crate) const NO_ENTRY: u64 = MOST as u64;

/// Notes the result of the system call that has made the thread for which [`expect`] returned this entry: the thread's number, or an
/// error.
pub(crate) fn born(entry: u64, result: i64) {
    let Some(sharer) = SHARERS.get(entry as usize) else { return };
    match u32::try_from(result) {
        Ok(tid) if tid != 0 && tid < CLAIMED => {
            sharer.known_as.store(tid, Ordering::Relaxed);
            // If the thread has called a hooked function, it has taken the entry, or that of another new thread.
            let _ = sharer.tid.compare_exchange(EXPECTED, tid, Ordering::AcqRel, Ordering::Relaxed);
        }
        _ => {
            let _ = sharer.tid.compare_exchange(EXPECTED, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// Returns the address of the calling thread's thread block. Its words are shared. While the thread has no entry, that is
/// [`Agent::no_block`]; if the agent may not ask for the thread's number, it is [`Agent::lost_block`].
#[inline(never)]
pub(crate) fn block(agent: &Agent) -> u64 {
    if kernel::is_frozen() {
        return agent.lost_block;
    }
    let words = words::get().address();
    find(words, task::gettid()).map_or(agent.no_block, |own| own.block.load(Ordering::Relaxed))
}

/// Returns whether it is time to call [`settle`]. The calling thread's words are shared, and it is about to count a call.
pub(crate) fn is_time_to_settle() -> bool {
    /// Counts the calls of all threads; it orders nothing.
    static CALLS: AtomicU32 = AtomicU32::new(0);
    CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(PATIENCE)
}

/// Stores the address of the calling thread's thread block, whose words are shared. Returns `false` if there is no room for the thread in
/// the table.
pub(crate) fn set_block(block: u64) -> bool {
    let (words, tid) = (words::get().address(), task::gettid());
    let expected = || {
        let sharer = find(words, EXPECTED)?;
        let taken = sharer.tid.compare_exchange(EXPECTED, tid, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok().then_some(sharer)
    };
    match find(words, tid).or_else(expected) {
        Some(own) => own.block.store(block, Ordering::Relaxed),
        None => return add(words, tid, block).is_some(),
    }
    true
}

/// Returns whether a thread that shares its words has this thread block.
pub(crate) fn have(block: u64) -> bool {
    all().any(|sharer| {
        !matches!(sharer.tid.load(Ordering::Acquire), 0 | CLAIMED)
            && sharer.block.load(Ordering::Relaxed) == block
    })
}

/// Returns whether the calling thread is in the table.
pub(crate) fn has_calling_thread() -> bool {
    USED.load(Ordering::Relaxed) != 0 && find(words::get().address(), task::gettid()).is_some()
}

/// Makes the calling thread's words lead to its own thread block again if no other thread shares them any more. This is no integer code.
pub(crate) fn settle() {
    if IS_DIVIDED.load(Ordering::Relaxed) || kernel::is_frozen() {
        return;
    }
    let (words, tid) = (words::get().address(), task::gettid());
    let Some(own) = find(words, tid) else { return };
    for other in all() {
        let theirs = other.tid.load(Ordering::Acquire);
        if theirs == 0 || theirs == tid || other.words.load(Ordering::Relaxed) != words {
            continue;
        }
        let known_as = match other.known_as.load(Ordering::Relaxed) {
            0 => theirs,
            known_as => known_as,
        };
        if matches!(theirs, EXPECTED | CLAIMED) || task::shares_memory(known_as) {
            return;
        }
        let _ = other.tid.compare_exchange(theirs, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
    // The calling thread is the only one that uses the words.
    words::get().block().store(own.block.load(Ordering::Relaxed), Ordering::Relaxed);
    own.tid.store(0, Ordering::Release);
}

/// In a forked child, which has one thread: its words are its own.
pub(crate) fn begin_child(parent: &Agent) {
    if USED.swap(0, Ordering::Relaxed) == 0 {
        return;
    }
    for sharer in &SHARERS {
        sharer.tid.store(0, Ordering::Relaxed);
    }
    let words = words::get();
    if is_shared(words.block().load(Ordering::Relaxed)) {
        words.block().store(parent.no_block, Ordering::Relaxed);
    }
}
