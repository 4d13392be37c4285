//! Finds the functions that need their original return addresses because of the behaviour of other
//! functions.

use crate::flow::branch::BranchKind;
use crate::flow::facts::Flow;
use crate::flow::return_slot::uses::FARTHEST;
use gprofinject_image::Image;

/// Marks the functions whose callees read their return addresses, and those that jump to functions with an
/// odd return.
pub(crate) fn spread(image: &Image, flow: &mut Flow) {
    spread_to_callers(image, flow);
    spread_to_jumpers(image, flow);
}

/// Marks the callers of functions that read their callers' return addresses, since those functions must
/// find original addresses; and so on up the stack. Calls through pointers are unknown and not marked.
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

/// Adds the functions that jump to one of these, because they share its frame.
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

/// Marks the functions that tail-call one with an odd return, because they return through it.
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
