//! Lets unwinders pass through thunks.
//!
//! The return slot of a hooked frame holds an exit label. An unwinder that finds this address looks up the
//! unwind information of that code; the functions by which it asks, `_dl_find_object` (since glibc 2.35) and
//! `dl_iterate_phdr`, are defined here, and the program and its libraries, the unwinder's among them, find
//! these definitions first. So the return slots need not be restored before unwinding, nor changed again
//! after the catch: the tables of the arena (`agent/plan/src/emit/cfi.rs`) describe the caller's frame at
//! each place in a thunk. This works for every kind of unwinding: exceptions, panics, pthread_exit,
//! cancellation.
//!
//! The definitions are in [`arena`]. In addition, [`backtraces`] keeps thunks out of backtraces, and
//! [`landings`] and [`jumps`] mark the frames that an exception or a longjmp has left. A program that has the
//! unwinder inside itself calls its own functions of these names: the plan redirects these to this layer
//! (`gpi_backtrace`, `gpi_land`). The layer knows neither other processes nor the set-up.

pub(crate) mod arena;
pub(crate) mod backtraces;
pub(crate) mod jumps;
pub(crate) mod landings;
pub(crate) mod library;
pub(crate) mod unwinder;
