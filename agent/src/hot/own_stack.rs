//! The extent of the calling thread's own stack.
#![allow(unsafe_code, reason = "glibc's description of a thread is read, which is no type of ours")]

use crate::os::kernel;
use crate::os::task;
use crate::os::words;
use crate::program::agent::Agent;
use core::sync::atomic::{Ordering, compiler_fence};

/// Finds the extent of the calling thread's own stack. Not on the hot path.
pub(crate) fn find(agent: &Agent) {
    let words = words::get();
    let control_block = words::thread_pointer();
    let (lo, hi) = if let Some(lo) = thread_stack(control_block) {
        (lo, control_block)
    } else if control_block == agent.main_thread || !kernel::is_frozen() && task::gettid() == task::getpid() {
        (agent.stack_lo, agent.stack_end)
    } else {
        (0, 0)
    };
    // `stack_hi` is written last, so that until then no address lies within the extent.
    words.stack_lo().store(lo, Ordering::Relaxed);
    compiler_fence(Ordering::Release);
    words.stack_hi().store(hi, Ordering::Relaxed);
}

/// Returns the lowest stack address of a thread that glibc has created. struct pthread, which begins with the
/// control block, holds the stack's address and size in adjacent fields, whose offset differs between
/// versions (nptl/descr.h, `stackblock`). The control block is at the top of the stack. Returns `None` if no
/// pair of words there fits; for the main thread, the size field is not valid.
fn thread_stack(control_block: u64) -> Option<u64> {
    const WORDS: usize = 0x900 / 8;
    /// The least size of struct pthread, and its alignment.
    const ON_TOP: u64 = 16 << 10;
    const LARGEST: u64 = 1 << 40;
    // SAFETY: struct pthread has at least 0x900 bytes in all versions that we support, and it is the calling
    // thread's own.
    let word = |n: usize| unsafe { *(control_block as *const u64).add(n) };
    (0..WORDS - 1).find_map(|n| {
        let (block, size) = (word(n), word(n + 1));
        let is = block != 0
            && block % 4096 == 0
            && size < LARGEST
            && block < control_block
            && (control_block..control_block + ON_TOP).contains(&block.wrapping_add(size));
        is.then_some(block)
    })
}
