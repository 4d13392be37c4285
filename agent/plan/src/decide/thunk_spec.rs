//! What is wanted of thunks.

use crate::decide::hook::Hook;
use crate::decide::unwinder;
use crate::flow::facts::Flow;
use crate::flow::registers::facts::Registers;
use gprofinject_image::Image;

/// What a hooked function's thunk must be like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThunkSpec {
    pub both: bool,
    /// Nothing can be charged to its frame: see [`gprofinject_abi::plan::LEAF`].
    pub leaf: bool,
    /// Its first instruction may be reached by an indirect jump of its own.
    pub loops: bool,
    /// Its first instructions can be copied as they are.
    pub movable: bool,
    pub registers: Registers,
}

/// Returns twice, or to another frame, or takes its caller's registers down: its exit must not be hooked.
/// (Those that read their return address are found by that; the names are for those whose way is hidden.)
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

/// The specs.
pub(crate) fn of_all(image: &Image, flow: &Flow, hooks: &[Hook], entry_only: bool) -> Vec<ThunkSpec> {
    hooks
        .iter()
        .map(|h| {
            let f = &image.functions[h.function];
            let facts = flow.functions[h.function];
            let own_return = f.names().any(|name| OWN_RETURN.contains(&name) || unwinder::drives(name));
            let leaf = facts.leaf && !facts.table_loops && !facts.odd_return;
            // Only a shadow stack tells a loop from a call.
            let both = !entry_only || facts.table_loops;
            ThunkSpec {
                both: both && !own_return && !facts.odd_return && !leaf,
                leaf,
                loops: facts.table_loops,
                // Nothing is led to an instruction among them.
                movable: h.relocated == 0
                    || facts.head.movable
                        && u64::from(facts.head.len) == h.relocated
                        && h.retargets.is_empty(),
                registers: facts.registers,
            }
        })
        .collect()
}
