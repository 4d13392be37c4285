//! The functions of an unwinder that is part of the program or of a library.

use gprofinject_plan::Plan;

use crate::program::planned::Planned;

/// Returns the runtime addresses of those functions of an unwinder in the program whose frames are below
/// every landing.
pub(super) fn unwinder(planned: &Planned, bias: u64) -> Vec<(u64, u64)> {
    const NAMES: [&str; 5] = [
        "_Unwind_RaiseException",
        "_Unwind_Resume",
        "_Unwind_Resume_or_Rethrow",
        "_Unwind_ForcedUnwind",
        "_Unwind_Backtrace",
    ];
    let functions = planned.functions().map(|(function, _)| function);
    let own = functions.filter(|function| function.names().any(|name| NAMES.contains(&name)));
    own.map(|function| (function.address.wrapping_add(bias), function.size)).collect()
}

/// Returns the runtime address at which such an unwinder's `_Unwind_GetGR` can be called without being
/// counted, or 0 if there is none. `arena` is the runtime address of the thunks.
pub(super) fn get_gr(planned: &Planned, plan: &Plan, bias: u64, arena: u64) -> u64 {
    let mut functions = planned.functions().map(|(function, _)| function);
    let Some(own) = functions.find(|function| function.names().any(|name| name == "_Unwind_GetGR")) else {
        return 0;
    };
    match plan.records.iter().find(|record| record.entry == own.address) {
        Some(record) => arena + u64::from(record.body),
        None => own.address.wrapping_add(bias),
    }
}
