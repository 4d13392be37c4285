//! Finds the caller's frame of a linked call ([`crate::hot::links`]) while the caller's registers still have
//! their values.
//!
//! `arcs::known` calls this code while vector registers still hold the program's values. So no code here may
//! change one; see [`crate::hot::gate`].

use crate::hot::cells::existing;
use crate::hot::nearest::Nearest;
use crate::hot::search::Frames;
use crate::program::agent::Agent;
use core::sync::atomic::Ordering;
use gprofinject_abi::plan::LEFT;

/// Returns the frame from which function `number` has been called directly, or `None` if it was not found.
/// The function has just been entered; `base` is the caller's rbp.
pub(crate) fn caller(
    agent: &Agent,
    number: u32,
    return_address: u64,
    cfa: u64,
    base: u64,
) -> Option<Nearest> {
    let frames = Frames::above(agent, cfa)?;
    let function = agent.function_at(return_address.wrapping_sub(agent.bias).wrapping_sub(1))?;
    let is_it = |at: u64| at.is_multiple_of(8) && frames.is_alive(at) == Some(function);
    // A frame of variable size has a frame pointer: rbp points to the saved rbp of its caller, and the return
    // address follows.
    let framed = base.wrapping_add(16);
    if is_it(framed) {
        return Some(frames.nearest(function, framed));
    }
    // Any other frame has the same size at each call from the same call site, so the distance to its CFA is
    // the same. The distance is remembered in the next cell, which no frame uses, because CFAs are multiples
    // of 16. If a frame uses the cell all the same, it overwrites the distance.
    let memory = existing(cfa + 8)?;
    let link = memory.link().load(Ordering::Relaxed);
    let is_free = memory.return_address().load(Ordering::Relaxed) == 0;
    if is_free && memory.function().load(Ordering::Relaxed) == number && link > LEFT {
        let at = cfa + 8 * u64::from(link - 1);
        if is_it(at) {
            return Some(frames.nearest(function, at));
        }
    }
    let nearest = frames.first()?;
    if nearest.function != Some(function) {
        return None;
    }
    if is_free {
        let contents = u64::from(number) | u64::from(nearest.link_from(cfa)) << 32;
        memory.function_and_link().store(contents, Ordering::Relaxed);
    }
    Some(nearest)
}
