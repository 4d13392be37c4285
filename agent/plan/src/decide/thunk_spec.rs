//! The requirements of each hooked function's thunk.

use crate::decide::cells::{self, Cells};
use crate::decide::hook::Hook;
use crate::decide::options::Told;
use crate::decide::own_return::returns_otherwise;
use crate::decide::stack_copiers;
use crate::decide::unwinder::ThroughAgent;
use crate::flow::branch::BranchKind;
use crate::flow::facts::Flow;
use crate::flow::falls::Fall;
use crate::flow::registers::facts::Registers;
use gprofinject_image::Image;
use std::collections::HashSet;

/// The requirements of a hooked function's thunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThunkSpec {
    /// Whether every call has a cell, and the exit is hooked as well as the entry.
    pub both: bool,
    /// Whether calls by unhooked code have a cell and a hooked exit. Implies `needs_no_cell`, and excludes `both`.
    pub callbacks: bool,
    /// Whether the function's callees are identified without its frame: see [`gprofinject_abi::plan::NEEDS_NO_CELL`].
    pub needs_no_cell: bool,
    /// Whether calls beyond the maximum measured depth have no cell. Implies `both`.
    pub skips: bool,
    /// When the function tells the agent about its calls, if [`Measured::Chosen`](crate::Measured::Chosen) calls do.
    pub told: Told,
    /// Whether an indirect jump of the function itself may lead to its first instruction.
    pub loops: bool,
    /// Whether the relocated instructions can be copied as they are, and no branch leads to one of them.
    pub movable: bool,
    /// The registers that the thunk need not preserve.
    pub registers: Registers,
    /// Whether control may come to the thunk without a call, from the function itself or from the one before, so that the memory below
    /// rsp may be in use.
    pub entered_within: bool,
}

impl ThunkSpec {
    /// Returns whether the thunk has an exit.
    pub(crate) fn has_exit(self) -> bool {
        self.both || self.callbacks
    }
}

/// What else of a plan decides about thunks.
#[derive(Clone, Copy)]
pub(crate) struct Circumstances<'a> {
    /// Whether basic blocks are counted in the process, so that return addresses may lie in arenas.
    pub(crate) counted: bool,
    /// Whether only calls from outside of the module are counted, so that calls of a hooked function may have no frame that is hooked.
    pub(crate) outermost: bool,
    /// Where control runs on from one function into another.
    pub(crate) falls: &'a [Fall],
}

/// Selects the functions that get exit hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exits {
    /// Only functions in which nothing but a cell distinguishes a loop from a call.
    Few,
    /// Functions that need a cell.
    Needed,
    /// All functions in which an exit hook is possible.
    All,
    /// All functions in which an exit hook is possible; but calls beyond the maximum measured depth have a cell only if they need one.
    Outer,
}

impl Exits {
    /// Returns whether functions have exit hooks because calls are measured.
    pub(crate) fn are_measured(self) -> bool {
        matches!(self, Exits::All | Exits::Outer)
    }
}

/// Returns the requirements of each hook's thunk, in the order of the hooks. `returns_condition` returns whether the exit of a
/// function, by its index in the image, would change flags that its caller reads. Such a function is hooked only if it is a leaf.
/// `told` says of which functions' calls the agent is told, by their indexes in the image; it is empty if this depends on nothing but
/// the exits.
pub(crate) fn of_all(
    image: &Image,
    flow: &Flow,
    hooks: &[Hook],
    (exits, told): (Exits, &[Told]),
    through_agent: &[ThroughAgent],
    circumstances: Circumstances<'_>,
    returns_condition: &dyn Fn(usize) -> bool,
) -> Vec<ThunkSpec> {
    let Circumstances { counted, outermost, falls } = circumstances;
    let none_if = |has_none: bool| if has_none { Cells::None } else { Cells::All };
    let cells: Vec<Cells> = match exits {
        Exits::Few => cells::leaves(flow, hooks).into_iter().map(none_if).collect(),
        // Calls among the module's functions have no cells.
        Exits::Needed if outermost => cells::leaves(flow, hooks).into_iter().map(none_if).collect(),
        Exits::Needed => cells::cells(image, flow, hooks, through_agent, counted, true),
        Exits::All | Exits::Outer => {
            hooks.iter().map(|hook| none_if(returns_condition(hook.function))).collect()
        }
    };
    let told_of = |hook: &Hook| told.get(hook.function).copied().unwrap_or_default();
    let begins = |hook: &&Hook| told_of(hook).begins && exits != Exits::Few;
    let into = |hook: &Hook| flow.branches_into(hook.function, image.functions[hook.function].address + 1);
    let jumps = hooks.iter().filter(begins).flat_map(into).filter(|branch| branch.kind != BranchKind::Call);
    let jumping: HashSet<usize> = jumps.map(|branch| image.owner(branch.function as usize)).collect();
    // A call has an argument or a result in its frame only if the frame has an exit that tells of it.
    let cells: Vec<Cells> = hooks
        .iter()
        .zip(cells)
        .map(|(hook, cells)| match told_of(hook) {
            _ if returns_condition(hook.function) => cells,
            // The label in its frame says that it has jumped.
            _ if jumping.contains(&hook.function) => Cells::All,
            Told { results: true, .. } => Cells::All,
            // An exit for some of the calls would put its label where the others have their return addresses.
            Told { begins: true, .. } if cells == Cells::Callbacks => Cells::All,
            _ => cells,
        })
        .collect();
    // The cells of calls beyond the maximum depth. Functions with tail calls keep their cells: otherwise, the callee could not know
    // whether the frame has a cell already.
    let inner = match exits {
        Exits::Outer if outermost => cells::leaves(flow, hooks).into_iter().map(none_if).collect(),
        Exits::Outer => cells::cells(image, flow, hooks, through_agent, counted, false),
        _ => vec![Cells::All; hooks.len()],
    };
    hooks
        .iter()
        .zip(cells.into_iter().zip(inner))
        .enumerate()
        .map(|(number, (h, (cells, inner)))| {
            let facts = flow.functions[h.function];
            // Only a shadow stack can distinguish a loop from a call.
            let both = exits != Exits::Few || facts.table_loops;
            let own_return = returns_otherwise(&image.functions[h.function]);
            let is_stack_copier = |f: &ThroughAgent| f.number == number && f.gate == stack_copiers::GATE;
            let own_return = own_return || through_agent.iter().any(is_stack_copier);
            let both = both && !own_return && !facts.odd_return && cells == Cells::All;
            ThunkSpec {
                both,
                skips: both && inner == Cells::None,
                told: told_of(h),
                callbacks: cells == Cells::Callbacks,
                needs_no_cell: cells != Cells::All,
                loops: facts.table_loops,
                // No branch leads to one of the relocated instructions.
                movable: h.relocated == 0
                    || facts.head.movable
                        && u64::from(facts.head.len) == h.relocated
                        && h.retargets.is_empty(),
                registers: if image.facts.go { Registers::ALL_INPUTS } else { facts.registers },
                entered_within: facts.table_loops
                    || falls.iter().any(|fall| fall.into == image.functions[h.function].address),
            }
        })
        .collect()
}
