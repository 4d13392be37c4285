//! Unwinders on their way through thunks.
//!
//! The return slot of a hooked frame holds an exit label. An unwinder that comes by it looks for a description of that code;
//! the functions by which it asks, `_dl_find_object` (since glibc 2.35) and `dl_iterate_phdr`, are defined here, and the
//! program and its libraries, the unwinder's among them, find these definitions first. So the return slots need not be
//! restored before somebody unwinds, nor changed again behind the catch: the tables of the arena (`agent/plan/src/emit/cfi.rs`)
//! lead from the thunk to the caller. That holds for every way to unwind: exceptions, panics, pthread_exit, cancellation.
//!
//! The answers are in [`arena`]. Besides, a backtrace must not show thunks ([`backtraces`]), and where an exception or a
//! longjmp lands, the frames that it has left are marked ([`landings`], [`jumps`]). A program that has the unwinder inside
//! itself calls its own functions of these names: the plan leads them here (`gpi_backtrace`, `gpi_land`). This layer does not
//! know of other processes, nor of the set-up.

pub(crate) mod arena;
pub(crate) mod backtraces;
pub(crate) mod jumps;
pub(crate) mod landings;
pub(crate) mod library;
pub(crate) mod unwinder;
