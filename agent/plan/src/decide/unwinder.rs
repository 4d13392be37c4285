//! Functions of an unwinder that is part of the program (libgcc or libunwind, linked statically).
//!
//! Calls of two of them by the program's own code are led through the agent, as calls of a library's are. See
//! the agent's `unwind/`. Those that take a step from frame to frame are left alone: the way past a hooked frame is one
//! more step, and their counts would not be the ones that the program has without us. Those that end in another
//! frame than they were called in have no exit that could be hooked.

use crate::decide::hook::Hook;
use crate::decide::verdict::{Failed, Reason};
use crate::flow::branch::BranchKind;
use crate::flow::facts::Flow;
use gprofinject_abi::plan::ArenaHeader;
use gprofinject_image::{FunctionKind, Image};
use std::mem::offset_of;

/// A function whose body begins with the way through the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThroughAgent {
    /// Its number.
    pub(crate) number: usize,
    /// Number of the function that tells the agent more about the first argument.
    pub(crate) helper: usize,
    /// Offset in [`ArenaHeader`] of the address to go by.
    pub(crate) gate: usize,
}

/// Each function to be led, its helper, and the way.
const THROUGH_AGENT: [(&str, &str, usize); 2] = [
    ("_Unwind_Backtrace", "_Unwind_GetIP", offset_of!(ArenaHeader, backtrace)),
    ("_Unwind_SetIP", "_Unwind_GetCFA", offset_of!(ArenaHeader, land)),
];

/// Whether the function is one of them, or a helper: unhooked, an unwinder in the program would not be seen.
pub(crate) fn is_needed(image: &Image, function: usize) -> bool {
    let mut names = image.functions[function].names();
    image.facts.own_unwinder
        && names.any(|n| THROUGH_AGENT.iter().any(|(name, helper, _)| [*name, *helper].contains(&n)))
}

/// Those that are hooked, with their helpers.
pub(crate) fn through_agent(image: &Image, hooks: &[Hook]) -> Vec<ThroughAgent> {
    let find =
        |wanted: &str| hooks.iter().position(|h| image.functions[h.function].names().any(|n| n == wanted));
    if !image.facts.own_unwinder {
        return Vec::new();
    }
    let both = |(name, helper, gate)| Some(ThroughAgent { number: find(name)?, helper: find(helper)?, gate });
    THROUGH_AGENT.into_iter().filter_map(both).collect()
}

/// What runs for each frame, in libgcc (unwind-dw2.c, unwind-dw2-fde.c, unwind-dw2-fde-dip.c), where it is not
/// inlined. unwind-pe.h has more, of which personalities have copies of their own; those here are found by who
/// calls them.
const STEPS: [&str; 27] = [
    "uw_frame_state_for",
    "uw_update_context",
    "uw_update_context_1",
    "uw_advance_context",
    "execute_cfa_program",
    "execute_cfa_program_generic",
    "execute_cfa_program_specialized",
    "execute_stack_op",
    "extract_cie_info",
    "x86_64_fallback_frame_state",
    "_Unwind_Find_FDE",
    "_Unwind_Find_registered_FDE",
    "_Unwind_IteratePhdrCallback",
    "_Unwind_SetGRPtr",
    "_Unwind_SetSpColumn",
    "_Unwind_GetPtr",
    "search_object",
    "linear_search_fdes",
    "init_object",
    "add_fdes",
    "classify_object_over_fdes",
    "frame_heapsort",
    "frame_downheap",
    "fde_unencoded_compare",
    "fde_single_encoding_compare",
    "fde_mixed_encoding_compare",
    // Once, by pthread_once, for a function that has no frame of ours.
    "init_dwarf_reg_size_table",
];

/// The same in the other two: LLVM's libunwind (a C++ namespace below a C interface), and nongnu.org's, which
/// names all that another file of its own may call.
const STEPPING: [&str; 5] = ["_ZN9libunwind", "_ZNK9libunwind", "__unw_", "_ULx86_64_", "_Ux86_64_"];

/// Those of [`STEPPING`] that a program calls once, to see where it is.
const ONCE: [&str; 4] = ["__unw_getcontext", "_ULx86_64_getcontext", "_Ux86_64_getcontext", "__unw_resume"];

/// They raise, resume or end: where they return to is another frame, of whose exit nothing would be seen.
const DRIVERS: [&str; 7] = [
    "_Unwind_RaiseException",
    "_Unwind_RaiseException_Phase2",
    "_Unwind_ForcedUnwind",
    "_Unwind_ForcedUnwind_Phase2",
    "_Unwind_Resume",
    "_Unwind_Resume_or_Rethrow",
    "uw_install_context_1",
];

/// Whether the function's exit must not be hooked.
pub(crate) fn drives(name: &str) -> bool {
    DRIVERS.contains(&plain(name))
}

/// A name without what the compiler appends to a copy (`.part.0`, `.constprop.0`, `.isra.0`).
fn plain(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

fn steps_by_name(name: &str) -> bool {
    let name = plain(name);
    STEPS.contains(&name)
        || STEPPING.iter().any(|prefix| name.starts_with(prefix)) && !ONCE.contains(&name) && !drives(name)
}

/// The functions that take steps: those known by name, and those that are called by them alone.
pub(crate) fn steps(image: &Image, flow: &Flow) -> Failed {
    let mut steps = Failed::new();
    if !image.facts.own_unwinder {
        return steps;
    }
    let functions =
        || image.functions.iter().enumerate().filter(|(_, f)| !matches!(f.kind, FunctionKind::Cold(_)));
    steps.extend(
        functions().filter(|(_, f)| f.names().any(steps_by_name)).map(|(i, _)| (i, Reason::Unwinder)),
    );
    loop {
        let known = steps.len();
        for (i, f) in functions() {
            let mut callers = flow
                .branches_into(i, f.address + 1)
                .iter()
                .map(|b| (b.kind, image.owner(b.function as usize)));
            let others = |(kind, from): (BranchKind, usize)| {
                !steps.contains_key(&from) && (kind == BranchKind::Call || from != i)
            };
            let called = callers.clone().any(|(_, from)| steps.contains_key(&from));
            if called && !flow.is_taken(f.address) && !callers.any(others) {
                steps.insert(i, Reason::Unwinder);
            }
        }
        if steps.len() == known {
            return steps;
        }
    }
}
