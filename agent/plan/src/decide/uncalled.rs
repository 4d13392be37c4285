//! Determines how a thunk recognizes that control has reached a function's start without a call.
//!
//! A call stores a return address in the return slot. If a thunk finds the exit label of a hooked function there instead, that
//! function has been entered already and control has come from it. This is a tail call (a jump) or one of two cases that are not
//! calls: an indirect jump of a function to its own first instruction is a loop, and control may fall through from the end of a
//! function into the next one ([`falls`](crate::flow::falls)). The thunk compares the return slot with the exit labels of the
//! functions for which one of these two cases is possible. If one matches, it continues in the body without counting a call.

use crate::decide::hook::Hook;
use crate::decide::tails::Tail;
use crate::decide::thunk_spec::ThunkSpec;
use crate::flow::branch::BranchKind;
use crate::flow::facts::Flow;
use crate::flow::falls::Fall;
use gprofinject_image::Image;
use std::collections::HashSet;

/// The maximum number of exit labels with which a thunk compares the return slot. Each comparison takes 13 bytes, and offsets in a
/// thunk are stored in a byte.
const MOST: usize = 8;

/// For each hooked function, the functions whose exit labels in the return slot show that the hooked function has not been called.
/// Functions have the numbers of their hooks.
#[derive(Debug, Default)]
pub(crate) struct Uncalled {
    /// Pairs of the function that is entered and the function whose exit label is in the return slot, sorted by the former.
    pairs: Vec<(u32, u32)>,
}

impl Uncalled {
    /// Finds the pairs. `falls` and `tails` are all fall-throughs and all counted tail calls of the image.
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
            // Control may fall through several functions; then the label is that of any function in this chain. Fall-throughs are
            // sorted by address, so the chain up to `from` is complete when `from` itself is reached.
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

    /// Returns the pairs of the function with this number.
    pub(crate) fn by(&self, number: usize) -> &[(u32, u32)] {
        let number = number as u32;
        let start = self.pairs.partition_point(|&(into, _)| into < number);
        let len = self.pairs[start..].partition_point(|&(into, _)| into == number);
        &self.pairs[start..start + len]
    }
}

/// Returns whether a jump of the preceding function may lead to the thunk of the other function, as a tail call that has the same exit
/// label in the return slot. `counted` are the sites of tail calls that are redirected to thunks of their own.
fn jumps(image: &Image, flow: &Flow, fall: &Fall, counted: &HashSet<u64>) -> bool {
    let index = |address: u64| image.functions.binary_search_by_key(&address, |f| f.address).ok();
    let Some((from, into)) = index(fall.from).zip(index(fall.into)) else { return true };
    let branches = flow.branches_into(into, fall.into + 1);
    branches.iter().any(|branch| {
        let is_its = image.owner(branch.function as usize) == image.owner(from);
        is_its && branch.kind != BranchKind::Call && !counted.contains(&branch.site)
    })
}
