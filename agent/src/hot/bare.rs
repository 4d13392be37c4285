//! The *bare part* of a thread's own stack: the addresses up to its end at which no frame of the program is alive.
//!
//! A thread that a library has made may run with no frame of the program, however deep the stack of libraries' functions is. Each call of a
//! function of the program there would search all of that stack, if the last event was in a function that is gone. But a frame of the program
//! can begin there only with a call out of other code, because no code of the program runs that could call a function. Each such call is
//! noticed: its caller is looked for.
//!
//! All of this is integer code; see [`crate::hot::gate`].

use crate::os::words;
use core::sync::atomic::Ordering;

/// Returns the start of the bare part of the calling thread's own stack.
pub(crate) fn start() -> u64 {
    let words = words::get();
    words.stack_hi().load(Ordering::Relaxed).wrapping_sub(words.bare().load(Ordering::Relaxed))
}

/// Notes that no frame of the program is alive from an address of the thread's own stack up to its end.
pub(crate) fn begin_at(at: u64) {
    if at < start() {
        set_start(at);
    }
}

/// Notes that a function of the program is called with this CFA. It, or one to which it jumps, may have a frame there.
pub(crate) fn end_at(cfa: u64) {
    if cfa >= start() && cfa < words::get().stack_hi().load(Ordering::Relaxed) {
        set_start((cfa & !7) + 8);
    }
}

fn set_start(at: u64) {
    let words = words::get();
    words.bare().store(words.stack_hi().load(Ordering::Relaxed).wrapping_sub(at), Ordering::Relaxed);
}
