//! Functions of an unwinder that is part of the program (libgcc or libunwind, linked statically).
//!
//! Two of them are called through the agent, like those of a library; see the agent's `unwind/`. Functions
//! that step from frame to frame are not hooked: passing a hooked frame takes one more step, so their
//! counts would differ from those of the program alone. Functions that end in another frame than the one
//! that called them cannot have exit hooks.

use crate::decide::hook::Hook;
use crate::decide::verdict::{Failed, Reason};
use crate::flow::branch::BranchKind;
use crate::flow::facts::Flow;
use crate::x86::template::kind::Role;
use gprofinject_abi::plan::ArenaHeader;
use gprofinject_image::{FunctionKind, Image};
use std::mem::offset_of;

/// A function whose body begins with a jump through the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThroughAgent {
    /// The function's number.
    pub(crate) number: usize,
    /// Number of the function that gives the agent more information about the first argument, if the agent needs one.
    pub(crate) helper: Option<usize>,
    /// Offset in [`ArenaHeader`] of the address to jump to.
    pub(crate) gate: usize,
}

/// Each function that is called through the agent, its helper if it has one, and the offset of the address to jump to.
const THROUGH_AGENT: [(&str, Option<&str>, usize); 4] = [
    ("_Unwind_Backtrace", Some("_Unwind_GetIP"), offset_of!(ArenaHeader, backtrace)),
    ("_Unwind_ForcedUnwind", Some("_Unwind_GetIP"), offset_of!(ArenaHeader, stop)),
    ("_Unwind_SetIP", Some("_Unwind_GetCFA"), offset_of!(ArenaHeader, land)),
    ("_Unwind_GetCFA", None, offset_of!(ArenaHeader, cfa)),
];

/// Returns whether the agent needs a hook in the function, because the function is called through the
/// agent or is a helper. Without the hook, the agent would not notice an unwinder in the program.
pub(crate) fn is_needed(image: &Image, function: usize) -> bool {
    let mut names = image.functions[function].names();
    image.facts.own_unwinder
        && names.any(|n| THROUGH_AGENT.iter().any(|(name, helper, _)| *name == n || *helper == Some(n)))
}

/// Returns the hooked functions that are called through the agent, with their helpers. The agent defines the same functions,
/// and all code finds its definitions before those that a library exports.
pub(crate) fn through_agent(image: &Image, flow: &Flow, hooks: &[Hook], role: Role) -> Vec<ThroughAgent> {
    let find =
        |wanted: &str| hooks.iter().position(|h| image.functions[h.function].names().any(|n| n == wanted));
    if !image.facts.own_unwinder {
        return Vec::new();
    }
    let both = |(name, helper, gate): (&str, Option<&str>, usize)| {
        let number = find(name)?;
        let helper = match helper {
            Some(helper) => Some(find(helper)?),
            None => None,
        };
        // The unwinder itself needs the offset by which the agent's gate changes the result. Where the compiler has not
        // inlined the function, the gate cannot tell its calls from the program's.
        let function = hooks[number].function;
        if role == Role::Library && image.details().exported.contains(&image.functions[function].address) {
            return None;
        }
        let is_stepped = || {
            let mut callers = flow.branches_into(function, image.functions[function].address + 1).iter();
            callers.any(|b| {
                image.functions[image.owner(b.function as usize)]
                    .names()
                    .any(|n| drives(n) || steps_by_name(n))
            })
        };
        (gate != offset_of!(ArenaHeader, cfa) || !is_stepped()).then_some(ThroughAgent {
            number,
            helper,
            gate,
        })
    };
    THROUGH_AGENT.into_iter().filter_map(both).collect()
}

/// The functions that libgcc runs for each frame (unwind-dw2.c, unwind-dw2-fde.c, unwind-dw2-fde-dip.c),
/// where they are not inlined. unwind-pe.h has more, but personality routines have copies of those; the
/// unwinder's own copies are found through their callers.
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
    // pthread_once runs it once, for a function in which no frame is hooked.
    "init_dwarf_reg_size_table",
];

/// Prefixes of such functions in the other two unwinders: LLVM's libunwind (a C++ namespace below a C
/// interface), and nongnu.org's libunwind.
const STEPPING: [&str; 5] = ["_ZN9libunwind", "_ZNK9libunwind", "__unw_", "_ULx86_64_", "_Ux86_64_"];

/// Functions with a prefix of [`STEPPING`] that a program calls once per unwind, to get its own context.
const ONCE: [&str; 4] = ["__unw_getcontext", "_ULx86_64_getcontext", "_Ux86_64_getcontext", "__unw_resume"];

/// Functions that raise, resume or end an unwind. They return to another frame, so an exit hook would not
/// run.
const DRIVERS: [&str; 7] = [
    "_Unwind_RaiseException",
    "_Unwind_RaiseException_Phase2",
    "_Unwind_ForcedUnwind",
    "_Unwind_ForcedUnwind_Phase2",
    "_Unwind_Resume",
    "_Unwind_Resume_or_Rethrow",
    "uw_install_context_1",
];

/// Returns whether the function's exit must not be hooked.
pub(crate) fn drives(name: &str) -> bool {
    DRIVERS.contains(&plain(name))
}

/// Returns a name without the suffix that the compiler appends to a copy (`.part.0`, `.constprop.0`,
/// `.isra.0`).
fn plain(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Returns whether a function with this name steps from frame to frame.
fn steps_by_name(name: &str) -> bool {
    let name = plain(name);
    STEPS.contains(&name)
        || STEPPING.iter().any(|prefix| name.starts_with(prefix)) && !ONCE.contains(&name) && !drives(name)
}

/// Returns the functions that step from frame to frame: those known by name, and those that only such
/// functions call.
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
