//! The stack of a thread for slow paths, where functions may be entered with less stack than these need: see
//! [`crate::hot::small_stacks`].
#![allow(unsafe_code, reason = "a word of the calling thread is reached by its address")]

use crate::os::memory;
use crate::os::words::{self, SLOW_STACK_FREE};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};

/// The bytes of a stack for slow paths. Executing a program takes most ([`crate::process::execute`]).
pub(crate) const LEN: u64 = 32 << 10;

/// The stacks that no thread has yet. Machine code takes one with one instruction, and needs neither a stack nor a system call.
#[repr(C)]
pub(crate) struct Pool {
    /// The upper end of the next stack. It keeps growing when all stacks are taken.
    next: AtomicU64,
    /// A number that is greater than the upper ends of all stacks. It is 0 in a program whose functions have enough stack.
    end: AtomicU64,
}

pub(crate) static POOL: Pool = Pool { next: AtomicU64::new(0), end: AtomicU64::new(0) };
/// The offsets of the fields.
pub(crate) const NEXT: usize = offset_of!(Pool, next);
pub(crate) const END: usize = offset_of!(Pool, end);

/// Makes the stacks, before the first hook is in place. Pages that are not used take no memory.
pub(crate) fn prepare() {
    /// The number of stacks, and that in a process with little address space.
    const STACKS: [u64; 2] = [4096, 256];
    let access = memory::PROT_READ | memory::PROT_WRITE;
    let made = STACKS.iter().find_map(|&count| Some((memory::map_zeros(count * LEN, access).ok()?, count)));
    let (next, end) = made.map_or((1, 1), |(lo, count)| (lo + LEN, lo + count * LEN + 1));
    POOL.next.store(next, Ordering::Relaxed);
    POOL.end.store(end, Ordering::Relaxed);
}

/// Gives stopped threads stacks for slow paths. `words` are the addresses of the word of each. Its contents may remain from an
/// agent that was taken out. Without memory, these threads do without.
pub(crate) fn give(words: impl ExactSizeIterator<Item = u64>) {
    let access = memory::PROT_READ | memory::PROT_WRITE;
    let stacks = memory::map_zeros((LEN * words.len() as u64).max(LEN), access);
    for (word, n) in words.zip(1..) {
        let stack = stacks.as_ref().map_or(0, |lo| (lo + n * LEN) | SLOW_STACK_FREE);
        // SAFETY: the word is that of a stopped thread, which no hook has led to the agent yet.
        unsafe { (word as *mut u64).write_volatile(stack) };
    }
}

/// Gives the calling thread a stack for slow paths if it has none because all of the pool's are taken. Without memory for it, the
/// thread does without.
pub(crate) fn make() {
    let word = words::slow_stack();
    // SAFETY: the word is the calling thread's; only its signal handlers access it besides, and they use the whole word.
    unsafe {
        if word.read_volatile() != 0 {
            return;
        }
        if let Ok(lo) = memory::map_zeros(LEN, memory::PROT_READ | memory::PROT_WRITE) {
            word.write_volatile((lo + LEN) | SLOW_STACK_FREE);
        }
    }
}
