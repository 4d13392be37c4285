//! Finds the functions that need no cell in the shadow stack, and so no exit hook.
//!
//! A cell identifies a frame as the caller of calls that return addresses do not identify: calls by code that is not hooked, and
//! tail calls. A *leaf* makes no calls and needs no cell. A function also needs no cell if all of its calls are direct calls of
//! functions that have cells or need none. Its own calls are identified by their return addresses. If one of its callees calls code
//! that is not hooked, the innermost of these callees has a cell, to which calls by that code are charged. The same holds for a
//! function with a tail call of such a function if the jump has a thunk of its own, because that thunk makes the callee's cell.
//!
//! If code that is not hooked calls the function (a callback or a signal handler), the call gets a cell nevertheless if the function
//! can reach a function with a cell. There are two reasons. The search for the caller of a later callback begins at the last return
//! through an exit hook ([hot-path.md](../../../../docs/internals/hot-path.md)), and would have to scan all of the stack in between without this
//! one. And a longjmp out of a signal handler has to find the handler's frame.

use crate::decide::hook::Hook;
use crate::decide::own_return::returns_otherwise;
use crate::decide::unwinder::ThroughAgent;
use crate::decide::verdict::Tactic;
use crate::flow::branch::BranchKind;
use crate::flow::facts::{Flow, FunctionFlow};
use gprofinject_image::{FunctionKind, Image};

/// The calls of a function that have a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cells {
    /// All calls.
    All,
    /// The calls by code that is not hooked.
    Callbacks,
    /// No calls.
    None,
}

/// Returns, for each hook, which calls of the function have a cell. If basic blocks are `counted`, a function without a cell has no tail
/// call of a function with a cell, because return addresses may then lie in copies of functions, which the thunk of the jump could not
/// distinguish from exit labels. If `jumps` is `false`, all functions with tail calls have cells.
pub(crate) fn cells(
    image: &Image,
    flow: &Flow,
    hooks: &[Hook],
    through_agent: &[ThroughAgent],
    counted: bool,
    jumps: bool,
) -> Vec<Cells> {
    let leaves = leaves(flow, hooks);
    if image.details().landing_pads.iter().any(|&pad| is_in_part_of_unknown_function(image, pad)) {
        return leaves.into_iter().map(|leaf| if leaf { Cells::None } else { Cells::All }).collect();
    }
    let mut number_of = vec![usize::MAX; image.functions.len()];
    for (number, hook) in hooks.iter().enumerate() {
        number_of[hook.function] = number;
    }
    let mut direct: Vec<bool> = hooks.iter().map(|hook| leaves_directly(image, flow, hook)).collect();
    for &pad in &image.details().landing_pads {
        // An exception may continue in a separate part of the function (a cold part) without a branch to that part.
        if let Some(part) = image.function_at(pad)
            && let Some(owner) = image.parent(part)
            && let Some(direct) = direct.get_mut(number_of[owner])
        {
            *direct = false;
        }
    }
    let mut may_be_called: Vec<bool> = hooks.iter().map(|hook| may_be_called(image, flow, hook)).collect();
    for f in through_agent {
        (direct[f.number], may_be_called[f.number]) = (false, false);
    }
    let mut open: Vec<bool> = hooks.iter().map(|hook| is_taken(image, flow, hook)).collect();
    // The direct calls and tail calls between hooks. Branches are sorted by target, and so are the edges.
    let mut edges = Vec::new();
    for branch in flow.branches() {
        let f = &image.functions[branch.function as usize];
        let is_call = branch.kind == BranchKind::Call;
        if !is_call && (f.address..f.address + f.size).contains(&branch.target) {
            continue;
        }
        let callee =
            image.function_at(branch.target).filter(|&i| image.functions[i].address == branch.target);
        let callee = callee.map(|i| number_of[i]).filter(|&callee| callee < hooks.len());
        let Some(caller) = hooks.get(number_of[image.owner(branch.function as usize)]) else {
            callee.into_iter().for_each(|callee| open[callee] = true);
            continue;
        };
        let caller = (number_of[caller.function], caller);
        if !direct[caller.0] {
            continue;
        }
        match callee.filter(|&callee| may_be_called[callee]) {
            Some(callee)
                if is_call
                    || jumps
                        && callee != caller.0
                        && !flow.functions[hooks[callee].function].table_loops
                        && caller.1.redirects(flow, *branch).is_some() =>
            {
                edges.push(Edge { callee, caller: caller.0, is_call });
            }
            _ => direct[caller.0] = false,
        }
    }
    let mut needs_none: Vec<bool> =
        direct.iter().zip(&leaves).map(|(direct, leaf)| *direct || *leaf).collect();
    if counted {
        spread(&edges, &mut needs_none, |edge| !edge.is_call);
    }
    // The functions that need no cell and from which no function with a cell can be reached.
    let mut reaches_none = needs_none.clone();
    spread(&edges, &mut reaches_none, |_| true);
    let of = |number: usize| match (needs_none[number], open[number] && !reaches_none[number]) {
        (false, _) => Cells::All,
        (true, true) => Cells::Callbacks,
        (true, false) => Cells::None,
    };
    (0..hooks.len()).map(of).collect()
}

/// A direct call or a tail call between the hooks with these numbers.
struct Edge {
    callee: usize,
    caller: usize,
    is_call: bool,
}

/// Clears the property `has` of each function from which a path of edges that `counts` accepts leads to a function without the
/// property. Edges are sorted by callee.
fn spread(edges: &[Edge], has: &mut [bool], counts: impl Fn(&Edge) -> bool) {
    let mut lacking: Vec<usize> = (0..has.len()).filter(|&number| !has[number]).collect();
    while let Some(callee) = lacking.pop() {
        let first = edges.partition_point(|edge| edge.callee < callee);
        for edge in edges[first..].iter().take_while(|edge| edge.callee == callee) {
            if counts(edge) && std::mem::replace(&mut has[edge.caller], false) {
                lacking.push(edge.caller);
            }
        }
    }
}

/// Returns, for each hook, whether the function is a leaf that returns in the ordinary way.
pub(crate) fn leaves(flow: &Flow, hooks: &[Hook]) -> Vec<bool> {
    hooks.iter().map(|hook| is_leaf(&flow.functions[hook.function])).collect()
}

/// Returns whether a function is a leaf that returns in the ordinary way.
pub(crate) fn is_leaf(facts: &FunctionFlow) -> bool {
    facts.leaf && !facts.table_loops && !facts.odd_return
}

/// Returns whether control leaves the function only by its return, direct calls and direct jumps.
fn leaves_directly(image: &Image, flow: &Flow, hook: &Hook) -> bool {
    let facts = &flow.functions[hook.function];
    let function = &image.functions[hook.function];
    let ordinary = !facts.table_loops && !facts.odd_return;
    facts.leaves_directly && ordinary && !returns_otherwise(function)
}

/// Returns whether this function allows its callers to have no cells.
///
/// Between the call and the function's own cell, a signal handler may interrupt the thread, and its calls are charged to the called
/// function. Without a cell of the caller, the address of the interrupted instruction has to identify that function, which it does
/// only with some tactics. A function that does not return in the ordinary way has no cell itself.
fn may_be_called(image: &Image, flow: &Flow, hook: &Hook) -> bool {
    let is_known = match hook.tactic {
        Tactic::Jump | Tactic::JumpIntoPadding | Tactic::JumpOverCall | Tactic::ShortJump => !hook.slid_into,
        Tactic::CallSites | Tactic::Sled | Tactic::Frida => false,
    };
    let facts = &flow.functions[hook.function];
    is_known && !facts.odd_return && !returns_otherwise(&image.functions[hook.function])
}

/// Returns whether the function's address is taken, or exported.
fn is_taken(image: &Image, flow: &Flow, hook: &Hook) -> bool {
    flow.is_taken(image.functions[hook.function].address) || flow.is_taken(hook.at)
}

/// Returns whether an address is in a part of a function that is not known.
fn is_in_part_of_unknown_function(image: &Image, address: u64) -> bool {
    match image.function_at(address) {
        Some(i) => matches!(image.functions[i].kind, FunctionKind::Cold(_)) && image.parent(i).is_none(),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::Cells::{self, All, Callbacks};
    use crate::plan::Plan;
    use crate::testing::{TEXT, image, plan_of};
    use gprofinject_abi::plan::{ENTRY_ONLY, NEEDS_NO_CELL};
    use gprofinject_image::ElfType;

    /// mov eax, edi; add eax, 1; nop; ret
    const LEAF: &[u8] = &[0x89, 0xf8, 0x83, 0xc0, 1, 0x90, 0xc3];
    /// mov eax, edi; call *%rsi; nop; ret
    const INDIRECT: &[u8] = &[0x89, 0xf8, 0x90, 0xff, 0xd6, 0x90, 0xc3];

    /// Returns a function that begins at this offset and, after `mov eax, edi; push rbx` and two nops, branches to the function at
    /// another offset, and then returns.
    fn branches(opcode: u8, from: usize, to: usize) -> Vec<u8> {
        let distance = to as i32 - (from + 10) as i32;
        [&[0x89, 0xf8, 0x53, 0x90, 0x90, opcode], &distance.to_le_bytes()[..], &[0x5b, 0xc3]].concat()
    }

    /// Returns which calls of each function have cells.
    fn cells(plan: &Plan) -> Vec<Cells> {
        let of = |flags| match (flags & ENTRY_ONLY != 0, flags & NEEDS_NO_CELL != 0) {
            (true, true) => Cells::None,
            (false, true) => Cells::Callbacks,
            (false, false) => Cells::All,
            (true, false) => panic!("the function uses its return address"),
        };
        plan.records.iter().map(|record| of(record.flags)).collect()
    }

    /// Returns which calls of each of these functions have cells, if the function with index `skip` is not hooked, and the
    /// address of the one with index `taken` is taken.
    fn cells_with(parts: &[&[u8]], skip: Option<usize>, taken: Option<usize>) -> Vec<Cells> {
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        let code = parts.concat();
        let mut image = image(ElfType::Dyn, TEXT, &code, &lengths);
        let addresses = std::mem::take(&mut image.details_mut().code_pointers);
        image.details_mut().code_pointers.extend(taken.map(|i| addresses[i]));
        cells(&plan_of(&image, skip))
    }

    fn cells_of(parts: &[&[u8]], skip: Option<usize>) -> Vec<Cells> {
        cells_with(parts, skip, None)
    }

    const CALL: u8 = 0xe8;
    const JUMP: u8 = 0xe9;

    #[test]
    fn direct_calls_of_hooked_functions_need_no_cell() {
        let caller = branches(CALL, LEAF.len(), 0);
        assert_eq!(cells_of(&[LEAF, &caller], None), [Cells::None, Cells::None]);
        // A function that has a cell may be called as well.
        assert_eq!(cells_of(&[INDIRECT, &caller], None), [All, Cells::None]);
        // One that is not hooked may not.
        assert_eq!(cells_of(&[LEAF, &caller], Some(0)), [All]);
        // Nor may the middle of one.
        assert_eq!(cells_of(&[LEAF, &branches(CALL, LEAF.len(), 2)], None), [Cells::None, All]);
        // A function may call itself, at its start.
        assert_eq!(cells_of(&[&branches(CALL, 0, 0)], None), [Cells::None]);
        assert_eq!(cells_of(&[&branches(CALL, 0, 2)], None), [All]);
    }

    #[test]
    fn functions_that_unhooked_code_may_call_need_cells_then_if_one_below_them_does() {
        let (first, second) = (INDIRECT.len(), INDIRECT.len() + 12);
        let chain = [INDIRECT, &branches(CALL, first, 0), &branches(CALL, second, first)];
        assert_eq!(cells_with(&chain, None, None), [All, Cells::None, Cells::None]);
        assert_eq!(cells_with(&chain, None, Some(2)), [All, Cells::None, Callbacks]);
        assert_eq!(cells_with(&chain, None, Some(1)), [All, Callbacks, Cells::None]);
        // A function that is not hooked may call the second one.
        assert_eq!(cells_with(&chain, Some(2), None), [All, Callbacks]);
        let chain = [LEAF, &branches(CALL, LEAF.len(), 0)];
        assert_eq!(cells_with(&chain, None, Some(1)), [Cells::None, Cells::None]);
    }

    #[test]
    fn a_function_that_reads_its_return_address_needs_its_caller_to_have_a_cell() {
        // mov rax, [rsp]; nop; ret
        let odd = [0x48, 0x8b, 0x04, 0x24, 0x90, 0xc3];
        let lengths = [odd.len(), 12];
        let code = [&odd[..], &branches(CALL, odd.len(), 0)].concat();
        let plan = plan_of(&image(ElfType::Dyn, TEXT, &code, &lengths), None);
        assert_eq!(plan.records[0].flags & (ENTRY_ONLY | NEEDS_NO_CELL), ENTRY_ONLY);
        assert_eq!(plan.records[1].flags & ENTRY_ONLY, 0);
    }

    #[test]
    fn jumps_that_have_thunks_need_no_cell() {
        let jumps = |from, to| {
            let mut code = branches(JUMP, from, to);
            code.truncate(10);
            // A tail call has the return address on top of the stack, so nothing is pushed.
            code[2] = 0x90;
            code
        };
        assert_eq!(cells_of(&[LEAF, &jumps(LEAF.len(), 0)], None), [Cells::None, Cells::None]);
        assert_eq!(cells_of(&[INDIRECT, &jumps(INDIRECT.len(), 0)], None), [All, Cells::None]);
        // Two functions that jump to each other.
        assert_eq!(cells_of(&[&jumps(0, 10), &jumps(10, 0)], None), [Cells::None, Cells::None]);
        let chain = [INDIRECT, &jumps(7, 0), &jumps(17, 7)];
        assert_eq!(cells_of(&chain, None), [All, Cells::None, Cells::None]);
        assert_eq!(cells_with(&chain, None, Some(2)), [All, Cells::None, Callbacks]);
        // jmp short
        let short = [0x89, 0xf8, 0x90, 0x90, 0x90, 0x90, 0x90, 0xeb, 0xf0];
        assert_eq!(cells_of(&[LEAF, &short], None), [Cells::None, All]);
    }
}
