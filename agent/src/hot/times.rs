//! Measuring how long calls take: `gprofinject --times`.
//!
//! The body of each function whose exit is hooked begins with a call of `gpi_call_begin` ([`gates`]), and its exit with a call of
//! `gpi_call_end`. Each thread keeps its *open calls*, those that have not ended, in a chain from the innermost one outwards
//! ([`gprofinject_abi::times`]). At its end, a call adds its duration to the `children` of its caller, so that the
//! caller's own time excludes that of its callees.
//!
//! These two routines are the *gates*. Their machine code handles the beginning of a call if the call's frame is below that of the
//! innermost open call on the same stack and its arc has been measured before, and the end of a call if that call is the innermost
//! one. All other cases take the *slow path* in [`calls`]: frames that a non-local jump has left, tail calls, other stacks ([`chains`]), and the first call of
//! an arc, which gets a record in the thread block's [`area`].
//!
//! The agent's own time is excluded in two ways. The time of slow paths is added to `paused`, which is subtracted from the clock, so
//! that it is in no duration, and so is the time for which other threads had the processor ([`switches`]). (The clock minus `paused` is called the *time without pauses*.) The overhead of the gates and thunks
//! is the same in each call: [`calibration`] measures it once, and it is subtracted from durations.

pub(crate) mod area;
pub(crate) mod arguments;
pub(crate) mod calibration;
pub(crate) mod calls;
pub(crate) mod chains;
pub(crate) mod clock;
pub(crate) mod forks;
pub(crate) mod gates;
pub(crate) mod inherited;
pub(crate) mod nodes;
pub(crate) mod open;
pub(crate) mod ring;
pub(crate) mod short;
pub(crate) mod snapshot;
#[cfg_attr(feature = "standalone", path = "times/no_switches.rs")]
pub(crate) mod switches;
pub(crate) mod table;
pub(crate) mod threads;
pub(crate) mod trace;
pub(crate) mod values;
