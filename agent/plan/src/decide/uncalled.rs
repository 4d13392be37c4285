//! Which exit labels in the return slot show that control has come to a function without a call.
//!
//! A call puts a return address into the return slot. If the slot has an exit label instead, the frame is that of a function
//! that has been entered already, and control has come from there: by a jump, which is a tail call, or in one of two ways that
//! are no call. An indirect jump of a function to its own first instruction is a loop, and from the end of a function control may
//! run on into the next one ([`falls`](crate::flow::falls)). The thunk compares the return slot with the exit labels of the
//! functions from which control may have come in such a way, and continues in the body.

use crate::decide::hook::Hook;
use crate::decide::tails::Tail;
use crate::decide::thunk_spec::ThunkSpec;
use crate::flow::branch::BranchKind;
use crate::flow::facts::Flow;
use crate::flow::falls::Fall;
use gprofinject_image::Image;
use std::collections::HashSet;

/// The largest number of exit labels that a thunk compares. Each takes 13 bytes, and the offsets of places in a thunk are stored in
/// a byte.
const MOST: usize = 8;

/// For each hooked function, the functions whose exit label in the return slot shows that it has not been called. Functions are
/// numbered as the hooks are.
#[derive(Debug, Default)]
pub(crate) struct Uncalled {
    /// The function that is entered, and the one whose exit label is in the return slot. Sorted by the former.
    pairs: Vec<(u32, u32)>,
}

impl Uncalled {
    /// Finds them. `falls` and `tails` are all there are.
    pub(crate) fn of(
        image: &Image,
        flow: &Flow,
        hooks: &[Hook],
        specs: &[ThunkSpec],
        tails: &[Tail],
        falls: &[Fall],
    ) -> Uncalled {
        let loops = |n: &usize| specs[*n].loops && specs[*n].both;
        let mut pairs: Vec<(u32, u32)> =
            (0..specs.len()).filter(loops).map(|n| (n as u32, n as u32)).collect();
        if !falls.is_empty() {
            let counted: HashSet<u64> = tails.iter().map(|tail| tail.branch.site).collect();
            let number = |address: u64| {
                hooks.binary_search_by_key(&address, |hook| image.functions[hook.function].address).ok()
            };
            // Falls are sorted, so the chain that leads to `from` is known before the one that continues it.
            let mut last: (u64, Vec<u32>) = (0, Vec::new());
            for fall in falls {
                let before = if last.0 == fall.from { std::mem::take(&mut last.1) } else { Vec::new() };
                let from = number(fall.from).filter(|&from| specs[from].both);
                let chain: Vec<u32> = before.into_iter().chain(from.map(|from| from as u32)).collect();
                if fall.jumps_anywhere || chain.len() >= MOST || jumps(image, flow, fall, &counted) {
                    continue;
                }
                if let Some(into) = number(fall.into) {
                    pairs.extend(chain.iter().map(|&from| (into as u32, from)));
                }
                last = (fall.into, chain);
            }
            pairs.sort_unstable();
        }
        Uncalled { pairs }
    }

    /// Returns the pairs of the function with a number.
    pub(crate) fn by(&self, number: usize) -> &[(u32, u32)] {
        let number = number as u32;
        let start = self.pairs.partition_point(|&(into, _)| into < number);
        let len = self.pairs[start..].partition_point(|&(into, _)| into == number);
        &self.pairs[start..start + len]
    }
}

/// Returns whether a jump of the function in front may come to the other function's thunk. `counted` are the jumps that have
/// thunks of their own, to which they lead instead.
fn jumps(image: &Image, flow: &Flow, fall: &Fall, counted: &HashSet<u64>) -> bool {
    let index = |address: u64| image.functions.binary_search_by_key(&address, |f| f.address).ok();
    let Some((from, into)) = index(fall.from).zip(index(fall.into)) else { return true };
    let branches = flow.branches_into(into, fall.into + 1);
    branches.iter().any(|branch| {
        let is_its = image.owner(branch.function as usize) == image.owner(from);
        is_its && branch.kind != BranchKind::Call && !counted.contains(&branch.site)
    })
}
