//! Counting calls: the code that runs on entry to a hooked function when the function's thunk cannot count
//! the call by itself.
//!
//! A thunk jumps to [`gate`], which calls [`arcs`] (if the arc is not in its home slot) or [`cells`] (if the
//! stack pointer is outside the thread's window), and continues at the place that the returned [`next::Next`]
//! describes. Counts leave this layer in the mapped region file. The layer does not know how the hooks were
//! put into the program, nor what else the process does.

pub(crate) mod arcs;
pub(crate) mod callers;
pub(crate) mod cells;
pub(crate) mod counters;
pub(crate) mod far;
pub(crate) mod gate;
pub(crate) mod links;
pub(crate) mod nearest;
pub(crate) mod next;
pub(crate) mod objects;
pub(crate) mod own_stack;
pub(crate) mod saved;
pub(crate) mod search;
pub(crate) mod sites;
pub(crate) mod slots;
pub(crate) mod thread_blocks;
pub(crate) mod threads;
pub(crate) mod timer;
pub(crate) mod timers;
