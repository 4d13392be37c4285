//! Counting calls: what runs each time that a hooked function is entered, if its thunk cannot do it alone.
//!
//! A thunk comes to [`gate`], which leads to [`arcs`] (an arc that is not at home in its slot) or to [`cells`] (a stack not
//! seen before), and back to the place that a [`next::Next`] names. Counts leave this layer in the mapped region file. The
//! layer does not know how the hooks came into the program, nor what the process does besides.

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
