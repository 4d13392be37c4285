//! Lets unwinders get through thunks.
//!
//! The return slot of a hooked frame contains an exit label. An unwinder that reaches it looks for a description of
//! that code. The functions by which it asks, `_dl_find_object` (since glibc 2.35) and `dl_iterate_phdr`, are defined
//! here, and the program and its libraries, the unwinder's among them, find these definitions first. Therefore return
//! slots need neither be restored before an unwind nor changed again after the catch: the tables of the arena
//! (`agent/plan/src/emit/cfi.rs`) lead from the thunk to the caller. This works for every kind of unwind: exceptions,
//! panics, pthread_exit, cancellation.
//!
//! The answers are in [`arena`]. In addition, a backtrace must not show thunks ([`backtraces`]), and where an
//! exception or a longjmp lands, the frames that it has left are marked ([`landings`], [`jumps`]). A program that
//! contains an unwinder calls its own functions of these names: the plan redirects them to the agent
//! (`gpi_backtrace`, `gpi_land`). This layer knows neither about other processes nor about the set-up.

pub(crate) mod arena;
pub(crate) mod backtraces;
pub(crate) mod jumps;
pub(crate) mod landings;
pub(crate) mod library;
#[cfg(feature = "standalone")]
pub(crate) mod own;
pub(crate) mod signals;
pub(crate) mod stack_copies;
pub(crate) mod steps;
pub(crate) mod stops;
pub(crate) mod unwinder;
