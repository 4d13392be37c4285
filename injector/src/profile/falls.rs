//! Removes arcs that no call has made: control ran on from the end of a function into the next one.

use std::collections::HashMap;

use gmon::Arc;
use gprofinject_abi::region::{CALLER, ROOT, SITE, TAIL};

use crate::program::planned::Planned;
use crate::store::region::read::Counter;

/// Whether a counter of an arc into the function at `to` has counted how often control ran on into it.
pub(crate) fn is_one(counter: &Counter, to: u64, planned: &Planned, bias: u64) -> bool {
    let Some(plan) = &planned.plan else { return false };
    let Some(fall) = plan.fall_into(to) else { return false };
    match counter.key {
        ROOT => false,
        key if key & (CALLER | SITE) != 0 => false,
        // Thunks recognise most falls themselves. This one is in the body of a function that has run on through many others.
        key if key & TAIL != 0 => {
            let caller = (key & !TAIL) as u32;
            let may_jump = fall.jumps_anywhere || plan.jumps_to(caller, counter.function);
            !may_jump && planned.entry(caller).is_some_and(|caller| leads_to(planned, caller, to))
        }
        // The call was one of the preceding function.
        return_address => match planned.call_target(return_address.wrapping_sub(bias)) {
            Some(called) if called != to => leads_to(planned, called, to),
            _ => false,
        },
    }
}

/// Whether control may run on from the function at `from` into the one at `into`, perhaps through others.
fn leads_to(planned: &Planned, from: u64, into: u64) -> bool {
    let Some(plan) = &planned.plan else { return false };
    let falls = std::iter::successors(plan.fall_into(into), |fall| plan.fall_into(fall.from));
    falls.take_while(|fall| fall.from >= from).any(|fall| fall.from == from)
}

/// Returns the function that always runs on into the one at `to`, unless the call at `site` is a direct one. Without a
/// site, the call comes from another module, through a pointer.
pub(crate) fn ran_on(planned: &Planned, site: Option<u64>, to: u64) -> Option<u64> {
    let fall = planned.plan.as_ref()?.fall_into(to).filter(|fall| fall.always)?;
    // The call site is one byte before the return address.
    let is_indirect = site.is_none_or(|site| planned.call_target(site + 1).is_none());
    is_indirect.then_some(fall.from)
}

/// Removes from the arcs what indirect calls of a function that always runs on have counted for the next
/// function. With entry hooks only, both functions have seen the same return address. The arcs are sorted.
pub(crate) fn without(arcs: Vec<Arc>, planned: &Planned) -> Vec<Arc> {
    if planned.plan.is_none() || planned.hooks() != "entry" {
        return arcs;
    }
    let counts: HashMap<(u64, u64), u64> = arcs.iter().map(|arc| ((arc.from, arc.to), arc.count)).collect();
    let rest = arcs.into_iter().filter_map(|arc| {
        let before = ran_on(planned, Some(arc.from), arc.to);
        let ran_on = before.and_then(|before| counts.get(&(arc.from, before))).copied().unwrap_or(0);
        Some(Arc { count: arc.count.saturating_sub(ran_on), ..arc }).filter(|arc| arc.count > 0)
    });
    rest.collect()
}
