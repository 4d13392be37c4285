//! Counting calls: the code that runs when a hooked function is entered, if its thunk cannot count the call alone.
//!
//! A thunk jumps to [`gate`], which calls [`arcs`] (for an arc that is not in its home slot) or [`cells`] (for a
//! stack that is not in the thread's window), and continues at the place that a [`next::Next`] names. Counts leave
//! this layer in the mapped region file. The layer does not know how the hooks were set up, nor about other events in
//! the process.

pub(crate) mod archive;
pub(crate) mod arcs;
pub(crate) mod bare;
pub(crate) mod blocks;
pub(crate) mod callers;
pub(crate) mod cells;
pub(crate) mod clear;
pub(crate) mod counters;
pub(crate) mod entered;
pub(crate) mod gate;
pub(crate) mod gate_code;
pub(crate) mod interrupted;
pub(crate) mod nearest;
pub(crate) mod newest_frame;
pub(crate) mod next;
pub(crate) mod objects;
pub(crate) mod own_stack;
pub(crate) mod ranges;
pub(crate) mod recent_arcs;
pub(crate) mod saved;
pub(crate) mod search;
pub(crate) mod sharers;
pub(crate) mod sites;
pub(crate) mod slots;
pub(crate) mod slow_stack;
pub(crate) mod small_stacks;
pub(crate) mod tally;
pub(crate) mod thread_blocks;
pub(crate) mod threads;
pub(crate) mod timer;
pub(crate) mod timers;
pub(crate) mod times;
