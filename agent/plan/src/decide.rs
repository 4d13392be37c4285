//! How each function is hooked, or why not.
//!
//! First every function that has room gets a near jump; then those that have none look for a *cave*,
//! five unused bytes within reach of a short jump: padding between functions, or bytes behind another
//! function's near jump that are dead because the instructions there were relocated. What is left slides
//! into its neighbour's patch ([`sled`]).

pub(crate) mod caves;
pub(crate) mod decider;
pub(crate) mod decisions;
pub(crate) mod fit;
pub(crate) mod foreign;
pub(crate) mod frida;
pub(crate) mod hook;
pub(crate) mod in_place;
pub(crate) mod options;
pub(crate) mod own_text;
pub(crate) mod sled;
pub(crate) mod slide;
pub(crate) mod start;
pub(crate) mod tactics;
pub(crate) mod tails;
pub(crate) mod thunk_spec;
pub(crate) mod unwinder;
pub(crate) mod verdict;
