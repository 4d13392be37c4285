//! Direct branches within a module of which only calls from outside are counted: they can lead to the body of the called function, past
//! its thunk.
//!
//! A branch that cannot be redirected leads to the thunk, which finds out by the return address where it comes from. After a jump, that is
//! the address to which the function returns that has jumped, or, if exits are hooked, its exit label. So with entry hooks alone, a jump
//! has to be redirected not to be counted, if the function that jumps was called from outside.

use crate::decide::hook::{Hook, relocates};
use crate::decide::verdict::Tactic;
use crate::flow::branch::{Branch, BranchKind};
use crate::flow::facts::Flow;
use gprofinject_image::Image;
use std::collections::HashSet;

/// A branch to a hooked function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortcut {
    /// The branch.
    pub branch: Branch,
    /// Number of the function to which it leads.
    pub callee: u32,
    /// Whether it is a jump among the instructions that its own function's hook relocates.
    pub relocated: bool,
}

/// Returns the branches that can be redirected. The hooks are sorted by address.
pub(crate) fn find(image: &Image, flow: &Flow, hooks: &[Hook]) -> Vec<Shortcut> {
    let mut number_of = vec![usize::MAX; image.functions.len()];
    for (number, hook) in hooks.iter().enumerate() {
        number_of[hook.function] = number;
    }
    // What leads into the bytes that a hook overwrites is redirected already.
    let retargets = hooks.iter().flat_map(|hook| &hook.retargets);
    let taken: HashSet<u64> = retargets.map(|retarget| retarget.branch.site).collect();
    let mut shortcuts = Vec::new();
    for (callee, hook) in (0_u32..).zip(hooks) {
        // The label in the return slot tells a loop of such a function from a call.
        if hook.tactic == Tactic::CallSites || flow.functions[hook.function].table_loops {
            continue;
        }
        for &branch in flow.branches_into(hook.function, image.functions[hook.function].address + 1) {
            let from = image.owner(branch.function as usize);
            let is_call = branch.kind == BranchKind::Call;
            if taken.contains(&branch.site) || !is_call && from == hook.function {
                continue;
            }
            let relocated = match hooks.get(number_of[from]) {
                Some(caller) => caller.redirects(flow, branch),
                None => {
                    let can_be = branch.width == 4 && !flow.functions[branch.function as usize].undecodable;
                    can_be.then_some(false)
                }
            };
            match relocated {
                Some(true) if !is_call => shortcuts.push(Shortcut { branch, callee, relocated: true }),
                Some(false) if !relocates(hooks, branch.site) && !relocates(hooks, branch.end() - 1) => {
                    shortcuts.push(Shortcut { branch, callee, relocated: false });
                }
                _ => {}
            }
        }
    }
    shortcuts
}
