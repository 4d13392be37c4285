//! The requirements of each hooked function's thunk.

use crate::decide::hook::Hook;
use crate::decide::needless;
use crate::decide::own_return::returns_otherwise;
use crate::decide::unwinder::ThroughAgent;
use crate::flow::facts::Flow;
use crate::flow::registers::facts::Registers;
use gprofinject_image::Image;

/// The requirements of a hooked function's thunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThunkSpec {
    /// Whether the exit is hooked as well as the entry.
    pub both: bool,
    /// Whether no call can be charged to the function's frame: see [`gprofinject_abi::plan::NEEDS_NO_CELL`].
    pub needs_no_cell: bool,
    /// Whether an indirect jump of the function itself may lead to its first instruction.
    pub loops: bool,
    /// Whether the relocated instructions can be copied as they are, and no branch leads to one of them.
    pub movable: bool,
    /// The registers that the thunk need not preserve.
    pub registers: Registers,
}

/// Which functions get exit hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exits {
    /// Only those in which nothing else can distinguish a loop from a call.
    Few,
    /// Those that need a cell.
    Needed,
    /// All in which an exit hook is possible.
    All,
}

/// Returns the requirements of each hook's thunk, in the order of the hooks. `returns_condition` returns whether the exit of a
/// function, by its index in the image, would change flags that its caller reads. Such a function is hooked only if it is a leaf.
pub(crate) fn of_all(
    image: &Image,
    flow: &Flow,
    hooks: &[Hook],
    exits: Exits,
    through_agent: &[ThroughAgent],
    returns_condition: &dyn Fn(usize) -> bool,
) -> Vec<ThunkSpec> {
    let needless = match exits {
        Exits::Few => needless::leaves(flow, hooks),
        Exits::Needed => needless::cells(image, flow, hooks, through_agent),
        Exits::All => hooks.iter().map(|hook| returns_condition(hook.function)).collect(),
    };
    hooks
        .iter()
        .zip(needless)
        .map(|(h, needs_no_cell)| {
            let facts = flow.functions[h.function];
            // Only a shadow stack can distinguish a loop from a call.
            let both = exits != Exits::Few || facts.table_loops;
            let own_return = returns_otherwise(&image.functions[h.function]);
            ThunkSpec {
                both: both && !own_return && !facts.odd_return && !needs_no_cell,
                needs_no_cell,
                loops: facts.table_loops,
                // No branch leads to one of the relocated instructions.
                movable: h.relocated == 0
                    || facts.head.movable
                        && u64::from(facts.head.len) == h.relocated
                        && h.retargets.is_empty(),
                registers: if image.facts.go { Registers::ALL_INPUTS } else { facts.registers },
            }
        })
        .collect()
}
