//! The extent of the calling thread's own stack.
#![allow(unsafe_code, reason = "glibc's description of a thread is read, which is no type of ours")]

use crate::os::kernel;
#[cfg(feature = "standalone")]
use crate::os::memory;
use crate::os::task;
use crate::os::words;
use crate::program::agent::Agent;
use core::sync::atomic::{Ordering, compiler_fence};

/// Finds the extent of the calling thread's own stack. This is not on the hot path.
pub(crate) fn find(agent: &Agent) {
    let words = words::get();
    let thread = words::thread_pointer();
    let (lo, hi) = if let Some(stack) = thread_stack(thread) {
        stack
    } else if thread == agent.main_thread || !kernel::is_frozen() && task::gettid() == task::getpid() {
        (agent.stack_lo, agent.stack_end)
    } else {
        (0, 0)
    };
    // `stack_hi` is written last: until then, no address lies within the extent.
    words.stack_lo().store(lo, Ordering::Relaxed);
    compiler_fence(Ordering::Release);
    words.stack_hi().store(hi, Ordering::Relaxed);
}

/// Returns the extent of the stack of a thread of a standalone program, if it is known.
#[cfg(feature = "standalone")]
fn thread_stack(_thread: u64) -> Option<(u64, u64)> {
    let stack = words::stack();
    if stack.1 == 0 { None } else { Some(stack) }
}

/// Returns the extent of the stack of another thread of a standalone program, to which the C library's thread pointer
/// leads, or zeros if it is not known. The thread is stopped.
#[cfg(feature = "standalone")]
pub(crate) fn of_stopped(thread_pointer: u64) -> [u64; 2] {
    let process = task::getpid();
    let last = thread_pointer.wrapping_add(LEAST - 1);
    let is_aligned = thread_pointer != 0 && thread_pointer.is_multiple_of(8);
    if !is_aligned || [thread_pointer, last].into_iter().any(|at| memory::is_unreadable(process, at)) {
        return [0; 2];
    }
    // SAFETY: both ends are readable, and the range is shorter than a page.
    unsafe { described_stack(thread_pointer) }.map_or([0; 2], |(lo, hi)| [lo, hi])
}

/// Returns the extent of the stack of a thread that glibc has made, or `None` if no field looks like it.
#[cfg(not(feature = "standalone"))]
fn thread_stack(control_block: u64) -> Option<(u64, u64)> {
    // SAFETY: the calling thread's own struct pthread has at least so many bytes in all versions that we support.
    unsafe { described_stack(control_block) }
}

/// The number of bytes that glibc's struct pthread has in all versions.
const LEAST: u64 = 0x900;

/// Returns the extent of the stack of a thread that the C library has made, by its description of the thread, or `None`
/// if no field looks like it. glibc's struct pthread, which begins with the control block, contains the stack's address
/// and size side by side, at an offset that differs between versions (nptl/descr.h, `stackblock`). The control block is
/// at the stack's top. The main thread's size is not a valid one. musl's struct pthread has the address and size of the
/// mapping in the same way (pthread_impl.h, `map_base`).
///
/// # Safety
/// [`LEAST`] bytes must be readable at `control_block`.
unsafe fn described_stack(control_block: u64) -> Option<(u64, u64)> {
    const WORDS: usize = LEAST as usize / 8;
    /// The size of struct pthread at most, with its alignment.
    const ON_TOP: u64 = 16 << 10;
    const LARGEST: u64 = 1 << 40;
    // SAFETY: the caller has promised that these bytes are readable.
    let word = |n: usize| unsafe { *(control_block as *const u64).add(n) };
    (0..WORDS - 1).find_map(|n| {
        let (block, size) = (word(n), word(n + 1));
        let is = block != 0
            && block % 4096 == 0
            && size < LARGEST
            && block < control_block
            && (control_block..control_block + ON_TOP).contains(&block.wrapping_add(size));
        is.then_some((block, control_block))
    })
}
