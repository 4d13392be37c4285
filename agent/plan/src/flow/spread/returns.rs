//! Odd returns.

use crate::flow::branch::BranchKind;
use crate::flow::facts::Flow;
use crate::flow::return_slot::uses::FARTHEST;
use gprofinject_image::Image;

/// Marks.
pub(crate) fn spread(image: &Image, flow: &mut Flow) {
    spread_to_callers(image, flow);
    spread_to_jumpers(image, flow);
}

/// A function that reads the return address of its caller's frame must find the true one there, and so up the
/// stack, as far as the callers are known: who calls through a pointer is not.
fn spread_to_callers(image: &Image, flow: &mut Flow) {
    for reader in 0..flow.functions.len() {
        let levels = flow.functions[reader].reads_callers;
        let mut callees = vec![reader];
        for level in 1..=FARTHEST {
            if levels >> level == 0 {
                break;
            }
            add_jumpers(image, flow, &mut callees);
            let mut callers = Vec::new();
            for &callee in &callees {
                let into = flow.branches_into(callee, image.functions[callee].address + 1);
                let calls = into.iter().filter(|b| b.kind == BranchKind::Call);
                callers.extend(calls.map(|b| image.owner(b.function as usize)));
            }
            callers.sort_unstable();
            callers.dedup();
            if levels & 1 << level != 0 {
                for &caller in &callers {
                    flow.functions[caller].odd_return = true;
                }
            }
            callees = callers;
        }
    }
}

/// Adds the functions that jump to one of these: their frames are one and the same.
fn add_jumpers(image: &Image, flow: &Flow, functions: &mut Vec<usize>) {
    let mut next = 0;
    while let Some(&to) = functions.get(next) {
        next += 1;
        for b in flow.branches_into(to, image.functions[to].address + 1) {
            let from = image.owner(b.function as usize);
            if b.kind != BranchKind::Call && !functions.contains(&from) {
                functions.push(from);
            }
        }
    }
}

/// A function that tail-calls one with an odd return returns as oddly.
fn spread_to_jumpers(image: &Image, flow: &mut Flow) {
    let mut work: Vec<usize> = (0..flow.functions.len()).filter(|&i| flow.functions[i].odd_return).collect();
    while let Some(to) = work.pop() {
        let f = &image.functions[to];
        let coming = flow.branches_into(to, f.address + f.size.max(1));
        let jumps = coming.iter().filter(|b| b.kind != BranchKind::Call);
        let callers: Vec<usize> = jumps.map(|b| b.function as usize).collect();
        for from in callers {
            if !std::mem::replace(&mut flow.functions[from].odd_return, true) {
                work.push(from);
            }
        }
    }
}
