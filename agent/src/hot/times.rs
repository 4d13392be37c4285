//! Measuring how long calls take: `gprofinject --times`.
//!
//! The body of each function whose exit is hooked begins with a call of `gpi_call_begin`, and its exit with a call of
//! `gpi_call_end` ([`gates`]). Each thread keeps its *open calls* in a chain from the innermost one outwards
//! ([`gprofinject_abi::times`]), so that a call's own time can be told from that of the calls that it makes: at its end, a call
//! adds its duration to the `children` of the one that made it.
//!
//! The gates do this in machine code as long as the call that begins is below the innermost open one on the same stack, its
//! arc has been measured before, and the call that ends is the innermost one. Everything else is left to [`calls`]: frames
//! that a jump has left, tail calls, other stacks ([`chains`]), and the first call of an arc, which gets a record in the
//! thread block's [`area`].
//!
//! The agent's own time is taken out in two ways. What a slow path takes is added to `paused`, which is subtracted from the
//! clock, so it is in no interval. What the gates and thunks take is the same in each call: [`calibration`] measures it once,
//! and it is subtracted from durations.

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
pub(crate) mod table;
pub(crate) mod threads;
pub(crate) mod told;
pub(crate) mod trace;
pub(crate) mod values;
