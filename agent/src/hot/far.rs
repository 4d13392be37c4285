//! Finds the caller's frame of a linked call ([`crate::hot::links`]) while the caller's registers are still
//! unchanged.
//!
//! `arcs::known` calls this code while vector registers still contain the program's values. Therefore nothing here
//! may use one; see [`crate::hot::gate`].

use crate::hot::cells::existing;
use crate::hot::nearest::Nearest;
use crate::hot::search::Frames;
use crate::program::agent::Agent;
use crate::program::domain::Domain;
use crate::program::libraries;
use core::sync::atomic::Ordering;
use gprofinject_abi::plan::{DISTANCE, FREE, LEFT};

/// Returns the frame from which a direct call of function `number` comes, found from the state at the callee's entry.
/// `base` is the caller's rbp.
pub(crate) fn caller(
    agent: &Agent,
    number: u32,
    return_address: u64,
    cfa: u64,
    base: u64,
) -> Option<Nearest> {
    let domain = Domain::of(number);
    let end = Frames::end_of_stack(cfa)?;
    let frames = Frames::above(agent, domain, cfa, end);
    let function = match domain {
        Domain::Program => {
            let program = &agent.program;
            program.function_at(return_address.wrapping_sub(program.bias).wrapping_sub(1))
        }
        Domain::Libraries => {
            let library = libraries::with_return(return_address)?;
            library.function_at(library.original(return_address).wrapping_sub(1))
        }
    }?;
    let is_it = |at: u64| at.is_multiple_of(8) && frames.is_alive(at) == Some(function);
    // A frame whose size changes has a frame pointer: at rbp is the caller's rbp, and after it the return address.
    let framed = base.wrapping_add(16);
    if is_it(framed) {
        return Some(frames.nearest(function, framed));
    }
    // Any other frame has the same size at each call from one place, and therefore the same distance. The distance is
    // stored where no frame can be, because CFAs are multiples of 16: in the next cell. If there is a frame after
    // all, it fills the cell, and the distance is lost.
    let memory = existing(cfa + 8)?;
    let link = memory.link().load(Ordering::Relaxed);
    // Such a cell is in the state [`FREE`], as that of a frame that has returned.
    let is_free = memory.return_address().load(Ordering::Relaxed) == 0;
    if is_free && memory.function().load(Ordering::Relaxed) == number && link & DISTANCE > LEFT {
        let at = cfa + 8 * u64::from((link & DISTANCE) - 1);
        if is_it(at) {
            return Some(frames.nearest(function, at));
        }
    }
    let nearest = frames.first()?;
    if nearest.function != Some(function) {
        return None;
    }
    if is_free {
        let contents = u64::from(number) | u64::from(nearest.link_from(cfa) | FREE) << 32;
        memory.function_and_link().store(contents, Ordering::Relaxed);
    }
    Some(nearest)
}
