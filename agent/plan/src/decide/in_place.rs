//! Which calls can still be made at their original addresses: see [`crate::x86::relocate::call`].

use crate::decide::fit::Fit;
use crate::decide::start::Start;
use crate::decide::verdict::Tactic;
use crate::flow::facts::Flow;
use crate::x86::relocate::call;
use crate::x86::scratch::R11;
use gprofinject_image::Image;
use iced_x86::{Decoder, DecoderOptions};

/// Returns the address at which the call that ends the relocated instructions can still be made, if a
/// patch overwrites their first `patch` bytes. This requires that nothing leads to the bytes between the
/// patch and the call's end, and that the value of r11 is not needed there.
pub(crate) fn site(
    image: &Image,
    flow: &Flow,
    i: usize,
    start: &Start,
    fit: &Fit,
    tactic: Tactic,
    patch: u64,
) -> Option<u64> {
    if !fit.over_call || !matches!(tactic, Tactic::JumpOverCall | Tactic::ShortJump) {
        return None;
    }
    if image.facts.go {
        return None; // any register may be an argument
    }
    let facts = flow.functions[i];
    let is_free = facts.registers.dead_on_entry() & R11 != 0 && !loops_with_r11(flow, i, start);
    if !is_free || facts.undecodable || start.entered(1, fit.relocated, fit.relocated) {
        return None;
    }
    let code = image.code_at(start.hook, fit.relocated)?;
    let offset = call::site(code, patch)?;
    (!takes_r11(image, flow, code, start.hook)).then_some(start.hook + offset)
}

/// Returns whether control may come back to the function's start with a value in r11 that the function
/// then uses.
fn loops_with_r11(flow: &Flow, i: usize, start: &Start) -> bool {
    let names = |function: usize| flow.functions[function].registers.names & R11 != 0;
    let mut loops = start.soft.iter().filter(|(offset, _)| *offset == 0);
    flow.functions[i].table_loops || loops.any(|(_, b)| names(i) || names(b.function as usize))
}

/// Returns whether the function that the last instruction of `code` calls has r11 as an input, as
/// `__x86_indirect_thunk_r11` has.
fn takes_r11(image: &Image, flow: &Flow, code: &[u8], at: u64) -> bool {
    let last = Decoder::with_ip(64, code, at, DecoderOptions::NONE).into_iter().last();
    let target = last.map_or(0, |call| call.near_branch_target());
    let called = image.functions.binary_search_by_key(&target, |f| f.address);
    called.is_ok_and(|called| flow.functions[called].registers.takes_r11)
}

#[cfg(test)]
mod tests;
