//! The requirements of each hooked function's thunk.

use crate::decide::hook::Hook;
use crate::decide::unwinder;
use crate::flow::facts::Flow;
use crate::flow::registers::facts::Registers;
use gprofinject_image::Image;

/// The requirements of a hooked function's thunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThunkSpec {
    /// Whether the exit is hooked as well as the entry.
    pub both: bool,
    /// Whether no call can be charged to the function's frame: see [`gprofinject_abi::plan::LEAF`].
    pub leaf: bool,
    /// Whether an indirect jump of the function itself may lead to its first instruction.
    pub loops: bool,
    /// Whether the relocated instructions can be copied as they are, and no branch leads to one of them.
    pub movable: bool,
    /// The registers that the thunk need not preserve.
    pub registers: Registers,
}

/// Functions that return twice, or to another frame, or that save their caller's registers. Their exits
/// must not be hooked. (A function that reads its return address is recognised by its code; these are
/// known by name, because their code does not show it.)
pub(crate) const OWN_RETURN: [&str; 11] = [
    "setjmp",
    "_setjmp",
    "sigsetjmp",
    "__sigsetjmp",
    "savectx",
    "vfork",
    "getcontext",
    "swapcontext",
    "unw_getcontext",
    "__unw_getcontext",
    "uw_init_context_1",
];

/// Returns the requirements of each hook's thunk, in the order of the hooks. With `entry_only`, exits are
/// hooked only where nothing else can distinguish a loop from a call. `leaf_has_exit` returns whether
/// a leaf, by its index in the image, has an exit, because its calls are measured.
pub(crate) fn of_all(
    image: &Image,
    flow: &Flow,
    hooks: &[Hook],
    entry_only: bool,
    leaf_has_exit: &dyn Fn(usize) -> bool,
) -> Vec<ThunkSpec> {
    hooks
        .iter()
        .map(|h| {
            let f = &image.functions[h.function];
            let facts = flow.functions[h.function];
            let own_return = f.names().any(|name| OWN_RETURN.contains(&name) || unwinder::drives(name));
            let leaf = facts.leaf && !facts.table_loops && !facts.odd_return && !leaf_has_exit(h.function);
            // Only a shadow stack can distinguish a loop from a call.
            let both = !entry_only || facts.table_loops;
            ThunkSpec {
                both: both && !own_return && !facts.odd_return && !leaf,
                leaf,
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
