//! System call user dispatch: a thread may have the kernel send it SIGSYS in place of its system calls
//! (`prctl(PR_SET_SYSCALL_USER_DISPATCH)`), as Wine does for the system calls of Windows programs.
//!
//! The program may exempt one range of addresses, and switches the dispatch on and off by a byte of its own, the selector, without a
//! system call. The agent's own calls must not end in a signal. If the program exempts no range, the agent has the kernel exempt the two
//! instructions by which it makes its calls ([`crate::os::kernel`]). Otherwise it looks at the selector before each call, and makes none
//! while the selector blocks them.
//!
//! The kernel keeps this by thread, and neither a new thread nor a forked child inherits it.
#![allow(unsafe_code, reason = "the program's selector is read")]

use crate::os::words;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Whether a thread of the process has had such a word: most programs' system calls need not look at it.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// A thread's word: the agent's system calls are not dispatched.
pub(crate) const EXEMPT: u64 = 0;
/// A thread's word: all of the agent's system calls are dispatched. Any other value is the address of the selector.
const ALWAYS: u64 = 1;

/// Returns whether the kernel would send a signal to the calling thread in place of a system call of the agent's.
pub(crate) fn blocks_calls() -> bool {
    IS_USED.load(Ordering::Relaxed) && is_blocked()
}

fn is_blocked() -> bool {
    /// SYSCALL_DISPATCH_FILTER_ALLOW
    const ALLOW: u8 = 0;
    match words::dispatch().map_or(EXEMPT, |word| word.load(Ordering::Relaxed)) {
        EXEMPT => false,
        ALWAYS => true,
        // SAFETY: the program has passed the address to the kernel, which reads the byte at each system call and ends the process if it
        // cannot.
        selector => unsafe { AtomicU8::from_ptr(selector as *mut u8) }.load(Ordering::Relaxed) != ALLOW,
    }
}

/// Makes the agent's system calls in the calling thread depend on a selector, or on none if its address is 0. Returns the thread's word
/// before, or `None` if the process has no such words.
pub(crate) fn depend_on(selector: u64) -> Option<u64> {
    let word = words::dispatch()?;
    IS_USED.store(true, Ordering::Relaxed);
    Some(word.swap(if selector == 0 { ALWAYS } else { selector }, Ordering::Relaxed))
}

/// Stores the calling thread's word.
pub(crate) fn restore(to: u64) {
    if IS_USED.load(Ordering::Relaxed)
        && let Some(word) = words::dispatch()
    {
        word.store(to, Ordering::Relaxed);
    }
}
