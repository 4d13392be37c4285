//! The stack of a thread for slow paths, where functions may be entered with less stack than these need: see
//! [`crate::hot::small_stacks`].
#![allow(unsafe_code, reason = "two words of the calling thread are reached by their address")]

use crate::os::memory;
use crate::os::words;

/// The bytes of a stack for slow paths. Executing a program takes most ([`crate::process::execute`]).
const LEN: u64 = 32 << 10;

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
