//! Tail calls: jumps from one hooked function to the start of another.
//!
//! A jump that can be redirected gets a thunk of its own. The thunk knows the caller and the callee, so it
//! needs no return address: it counts the arc in a slot of its own, passes the caller's frame on to the
//! callee, and enters the callee's body.

use crate::decide::hook::Hook;
use crate::decide::thunk_spec::ThunkSpec;
use crate::decide::verdict::Tactic;
use crate::flow::branch::{Branch, BranchKind};
use crate::flow::facts::Flow;
use gprofinject_image::Image;

/// A tail call that gets a thunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// The jump.
    pub branch: Branch,
    /// Number of the called function.
    pub callee: u32,
    /// Number of the function that jumps.
    pub caller: u32,
    /// Whether the jump is among the instructions that its own function's hook relocates.
    pub relocated: bool,
    /// Whether the function that jumps has a cell.
    pub has_cell: bool,
    /// Whether it has none, and the called function gets one.
    pub fills: bool,
}

/// Returns the tail calls that get a thunk, sorted by callee. The caller must have a cell in the shadow stack, which the
/// callee takes over if it needs one, or need none. Frames of functions that loop through a table are handed over by the agent, which
/// changes the exit label in the return slot: see [`gprofinject_abi::plan::LOOPS`].
pub(crate) fn find(image: &Image, flow: &Flow, hooks: &[Hook], specs: &[ThunkSpec]) -> Vec<Tail> {
    let mut number_of = vec![u32::MAX; image.functions.len()];
    for (hook, number) in hooks.iter().zip(0..) {
        number_of[hook.function] = number;
    }
    let mut tails = Vec::new();
    for (callee, hook) in hooks.iter().enumerate() {
        if !(specs[callee].both || specs[callee].needs_no_cell) || hook.tactic == Tactic::CallSites {
            continue;
        }
        if flow.functions[hook.function].table_loops {
            continue;
        }
        let address = image.functions[hook.function].address;
        for &branch in flow.branches_into(hook.function, address + 1) {
            let caller = number_of[image.owner(branch.function as usize)] as usize;
            let own = caller == callee;
            let counts = specs.get(caller).is_some_and(|spec| spec.both || spec.needs_no_cell);
            if branch.kind == BranchKind::Call || own || !counts {
                continue;
            }
            if flow.functions[hooks[caller].function].table_loops {
                continue;
            }
            let Some(relocated) = hooks[caller].redirects(flow, branch) else { continue };
            let has_cell = specs[caller].both;
            let fills = !has_cell && specs[callee].both;
            let (caller, callee) = (caller as u32, callee as u32);
            tails.push(Tail { branch, callee, caller, relocated, has_cell, fills });
        }
    }
    tails
}
