//! Functions of an unwinder that is part of the program (libgcc or libunwind, linked statically): calls of
//! them by the program's own code are led through the agent, as calls of a library's are. See the agent's
//! `unwind/`.

use crate::image::Image;
use crate::tactic::Hook;
use gprofinject_abi::plan::ArenaHeader;
use std::mem::offset_of;

/// A function whose body begins with the way through the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Led {
    /// Its number.
    pub(crate) number: usize,
    /// Number of the function that tells the agent more about the first argument.
    pub(crate) helper: usize,
    /// Offset in [`ArenaHeader`] of the address to go by.
    pub(crate) gate: usize,
}

/// Each function to be led, its helper, and the way.
const LED: [(&str, &str, usize); 2] = [
    ("_Unwind_Backtrace", "_Unwind_GetIP", offset_of!(ArenaHeader, backtrace)),
    ("_Unwind_SetIP", "_Unwind_GetCFA", offset_of!(ArenaHeader, land)),
];

/// Those that are hooked, with their helpers.
pub(crate) fn led(image: &Image, hooks: &[Hook]) -> Vec<Led> {
    let find =
        |wanted: &str| hooks.iter().position(|h| image.functions[h.function].names().any(|n| n == wanted));
    if !image.facts.own_unwinder {
        return Vec::new();
    }
    let both = |(name, helper, gate)| Some(Led { number: find(name)?, helper: find(helper)?, gate });
    LED.into_iter().filter_map(both).collect()
}
