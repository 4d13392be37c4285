//! Functions that need no cell in the shadow stack, and so no exit hook: no call can be charged to their frames.
//!
//! A call is charged to a frame if code that is not hooked makes it, or if the function jumps away. A *leaf* makes no
//! call at all. A function whose calls all lead, directly, to functions that have cells or need none does not need one
//! either: its own calls are known by their return addresses, and where one of the functions below it calls code that is
//! not hooked, the newest of these functions has a cell, to which calls by that code are charged.

use crate::decide::hook::Hook;
use crate::decide::own_return::returns_otherwise;
use crate::decide::unwinder::ThroughAgent;
use crate::decide::verdict::Tactic;
use crate::flow::branch::BranchKind;
use crate::flow::facts::{Flow, FunctionFlow};
use gprofinject_image::{FunctionKind, Image};

/// Returns for each hook whether the function needs no cell.
pub(crate) fn cells(image: &Image, flow: &Flow, hooks: &[Hook], through_agent: &[ThroughAgent]) -> Vec<bool> {
    let mut needless = leaves(flow, hooks);
    if image.landing_pads.iter().any(|&pad| is_in_part_of_unknown_function(image, pad)) {
        return needless;
    }
    let mut number_of = vec![u32::MAX; image.functions.len()];
    for (hook, number) in hooks.iter().zip(0..) {
        number_of[hook.function] = number;
    }
    let mut direct: Vec<bool> = hooks.iter().map(|hook| calls_directly(image, flow, hook)).collect();
    for &pad in &image.landing_pads {
        // An exception leads to a part of the function to which no branch of it does.
        if let Some(part) = image.function_at(pad)
            && let Some(owner) = image.parent(part)
            && let Some(direct) = direct.get_mut(number_of[owner] as usize)
        {
            *direct = false;
        }
    }
    let may_be_called: Vec<bool> = hooks
        .iter()
        .enumerate()
        .map(|(number, hook)| {
            may_be_called(image, flow, hook) && through_agent.iter().all(|f| f.number != number)
        })
        .collect();
    for branch in flow.branches().iter().filter(|branch| branch.kind == BranchKind::Call) {
        let Some(direct) =
            direct.get_mut(number_of[branch.function as usize] as usize).filter(|direct| **direct)
        else {
            continue;
        };
        let callee =
            image.function_at(branch.target).filter(|&i| image.functions[i].address == branch.target);
        let callee = callee.and_then(|i| may_be_called.get(number_of[i] as usize));
        *direct = callee == Some(&true);
    }
    for f in through_agent {
        direct[f.number] = false;
    }
    for (needless, direct) in needless.iter_mut().zip(direct) {
        *needless |= direct;
    }
    needless
}

/// Returns for each hook whether the function is a leaf that returns in the ordinary way.
pub(crate) fn leaves(flow: &Flow, hooks: &[Hook]) -> Vec<bool> {
    hooks.iter().map(|hook| is_leaf(&flow.functions[hook.function])).collect()
}

/// Returns whether a function is a leaf that returns in the ordinary way.
pub(crate) fn is_leaf(facts: &FunctionFlow) -> bool {
    facts.leaf && !facts.table_loops && !facts.odd_return
}

/// Returns whether control leaves the function only by its return and by direct calls.
fn calls_directly(image: &Image, flow: &Flow, hook: &Hook) -> bool {
    let facts = &flow.functions[hook.function];
    let function = &image.functions[hook.function];
    let ordinary = !facts.table_loops && !facts.odd_return;
    // Where a jump out of a signal handler leaves a stack of the handler's own, the handler's cell leads to the frames that
    // the signal has interrupted. (A leaf cannot jump.)
    let may_leave_signal_stack = image.facts.signal_stacks && flow.is_taken(function.address);
    facts.calls_directly && ordinary && !returns_otherwise(function) && !may_leave_signal_stack
}

/// Returns whether the callers of a function may do without cells as far as this function is concerned: it has a cell, or
/// needs none.
///
/// A signal handler that interrupts a call is charged to the called function from the call on. Only with these tactics
/// does the address of the interrupted instruction show which function that is.
fn may_be_called(image: &Image, flow: &Flow, hook: &Hook) -> bool {
    let is_known = match hook.tactic {
        Tactic::Jump | Tactic::JumpIntoPadding | Tactic::JumpOverCall | Tactic::ShortJump => !hook.slid_into,
        Tactic::CallSites | Tactic::Sled | Tactic::Frida => false,
    };
    let facts = &flow.functions[hook.function];
    is_known && !facts.odd_return && !returns_otherwise(&image.functions[hook.function])
}

/// Returns whether an address is in a part of some function, but it is not known of which.
fn is_in_part_of_unknown_function(image: &Image, address: u64) -> bool {
    match image.function_at(address) {
        Some(i) => matches!(image.functions[i].kind, FunctionKind::Cold(_)) && image.parent(i).is_none(),
        None => true,
    }
}
