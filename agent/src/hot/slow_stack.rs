//! The stack of a thread for slow paths, where functions may be entered with less stack than these need: see
//! [`crate::hot::small_stacks`].
#![allow(unsafe_code, reason = "two words of the calling thread are reached by their address")]

use crate::os::memory;
use crate::os::words;

/// The bytes of a stack for slow paths. Executing a program takes most ([`crate::process::execute`]).
const LEN: u64 = 32 << 10;

/// Gives stopped threads stacks for slow paths. `words` are the addresses of the two words of each. Their contents may remain from an
/// agent that was taken out. Without memory, these threads do without.
pub(crate) fn give(words: impl ExactSizeIterator<Item = u64>) {
    let access = memory::PROT_READ | memory::PROT_WRITE;
    let stacks = memory::map_zeros((LEN * words.len() as u64).max(LEN), access);
    for (words, n) in words.zip(1..) {
        let end = stacks.as_ref().map_or(0, |lo| lo + n * LEN);
        let words = words as *mut u64;
        // SAFETY: the words are those of a stopped thread, which no hook has led to the agent yet.
        unsafe {
            words.add(1).write_volatile(end);
            words.write_volatile(end);
        }
    }
}

/// Gives the calling thread a stack for slow paths, if it has none. Without memory for it, the thread does without.
pub(crate) fn make() {
    let words = words::slow_stack();
    // SAFETY: the two words are the calling thread's; only its signal handlers access them besides, and they use whole words.
    unsafe {
        if words.add(1).read_volatile() != 0 {
            return;
        }
        if let Ok(lo) = memory::map_zeros(LEN, memory::PROT_READ | memory::PROT_WRITE) {
            words.add(1).write_volatile(lo + LEN);
            words.write_volatile(lo + LEN);
        }
    }
}
