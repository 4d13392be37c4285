//! Which arcs have calls so short that they are only counted (`gprofinject --min-time`).
//!
//! A call that is measured costs many times as much as a short function. So a thread decides for each of its arcs, after each
//! [`TRIAL`] measured calls, whether these were short. As long as they are, the gates only count the arc's calls: they are no open
//! calls, so what they take is in the own time of the innermost open call, and what they call is called by that one. The cost of a
//! call that is only counted has been calibrated, and [a part](TAKEN) of it is added to the thread's pauses.
//!
//! One of [`PROBE`](gprofinject_abi::times::PROBE) calls is measured nevertheless. If it was not short, the next ones are measured again: a
//! function may do other work later.
//!
//! The calls of an arc are short if their mean duration is less than the limit for themselves and also for each measured call in them, the
//! call itself included. So all measured calls together take at least the limit for each of them, and the whole run is slower by a bounded
//! factor, however calls are nested. A recursive call's duration is not looked at: it is known only when the outermost call has ended, and
//! the call's time stays within the calls of the same recursion. A recursive call that is measured while most calls of its arc are
//! counted only has these calls' time in its own. So the calls of the arc that were counted during the call are calls in it as well.

use crate::hot::times::{area, table};
use crate::program::agent::Agent;
use core::sync::atomic::Ordering;
use gprofinject_abi::shared::{ArcTimesRef, OpenCallRef, TimesRef};
use gprofinject_abi::times::{BEGUN_SHORT_BIT, TRIAL};

/// The part of the cost of a call which is only counted that the gates take out of the time as it passes, as a fraction. A thread's time must
/// not run backwards where the processor overlaps the call with other work. The rest is taken out at the end of the run.
pub(crate) const TAKEN: (u64, u64) = (3, 4);

/// Returns whether it is time to decide, after the end of a measured call of an arc. The gates do the same in machine code.
pub(crate) fn is_due(arc: ArcTimesRef) -> bool {
    arc.calls().load(Ordering::Relaxed).is_multiple_of(TRIAL) || arc.short().load(Ordering::Relaxed) != 0
}

/// Returns the [flags](gprofinject_abi::times::OpenCall::flags) of a call of an arc that begins now which tell how many calls of the arc were
/// counted before it. The gates do the same in machine code.
pub(crate) fn flags(agent: &Agent, arc: ArcTimesRef) -> u32 {
    match agent.orders.short_below {
        0 => 0,
        _ => (arc.begun_short().load(Ordering::Relaxed) as u32) << BEGUN_SHORT_BIT,
    }
}

/// Decides whether the calls of an arc are short, by those that have ended since the last decision. The last of them is `call`. Does nothing
/// if all calls are to be measured.
pub(crate) fn decide(times: TimesRef, arc: ArcTimesRef, call: OpenCallRef) -> Option<()> {
    let load = |word: &core::sync::atomic::AtomicU64| word.load(Ordering::Relaxed);
    let below = load(times.short_below());
    if below == 0 {
        return None;
    }
    let (own, calls, inclusive) = (load(arc.own()), load(arc.calls()), load(arc.inclusive()));
    let outermost = calls.wrapping_sub(load(arc.nested()));
    let within = outermost.wrapping_add(load(arc.within()));
    let since = |field: &core::sync::atomic::AtomicU64, now: u64| {
        now.wrapping_sub(field.swap(now, Ordering::Relaxed))
    };
    let (own, calls) = (since(arc.seen_own(), own) as i64, since(arc.seen_calls(), calls));
    let (inclusive, within) = (since(arc.seen_inclusive(), inclusive), since(arc.seen_within(), within));
    let (inside, overhead) = (load(times.inside()), load(times.overhead()));
    let before = call.flags().load(Ordering::Relaxed) >> BEGUN_SHORT_BIT;
    let counted =
        load(arc.begun_short()).wrapping_sub(before.into()) & u64::from(u32::MAX >> BEGUN_SHORT_BIT);
    // The overhead outside of the calls that were made is in no own time already.
    let most = calls.saturating_add(counted).saturating_mul(below.saturating_add(inside));
    let is_short = own < i64::try_from(most).unwrap_or(i64::MAX)
        && (within == 0
            || inclusive < within.saturating_add(counted).saturating_mul(below.saturating_add(overhead)));
    arc.short().store(is_short.into(), Ordering::Relaxed);
    raise(times);
    if is_short {
        let outer = area::call(load(call.outer()))?;
        table::settle(times, outer.context().load(Ordering::Relaxed), arc.callee().load(Ordering::Relaxed));
    }
    Some(())
}

/// How many ticks of the thread's own time pass at least between two looks at what its calls cost: about a millisecond.
const LOOK: u64 = 1 << 21;

/// Raises the limit of the calling thread, of which this is the header, if since the last look its calls have cost one and a half times as
/// much as everything else, so that the run would take more than some three times as long as the plain program. Does nothing if those calls
/// that a higher limit could spare have cost little, or if the limit is as high as it may be.
fn raise(times: TimesRef) {
    let load = |word: &core::sync::atomic::AtomicU64| word.load(Ordering::Relaxed);
    let most = Agent::get().orders.short_most;
    let (below, last, judged) = (load(times.short_below()), load(times.last()), load(times.judged()));
    let passed = last.saturating_sub(judged);
    if below >= most || passed < LOOK {
        return;
    }
    let (begun, paused) = (load(times.begun()), load(times.paused()).saturating_sub(load(times.ready())));
    let measured = begun.saturating_sub(load(times.judged_begun())).saturating_mul(load(times.overhead()));
    let paused_since = paused.saturating_sub(load(times.judged_paused()));
    times.judged().store(last, Ordering::Relaxed);
    times.judged_begun().store(begun, Ordering::Relaxed);
    times.judged_paused().store(paused, Ordering::Relaxed);
    // The time before the first look begins with the thread; the clock had another value there than 0.
    if judged != 0 && is_too_much(passed, measured, paused_since) {
        times.short_below().store(below.saturating_mul(2).min(most), Ordering::Relaxed);
    }
}

/// Returns whether a higher limit is needed, and would help. In the time `passed`, measured calls have cost `measured`. The pauses are no part
/// of `passed`, and hold [a part](TAKEN) of what the other calls have cost; the rest of that is a part of `passed`.
fn is_too_much(passed: u64, measured: u64, paused: u64) -> bool {
    let (taken, of) = TAKEN;
    let counted = (paused / taken).saturating_mul(of);
    let own = passed.saturating_sub(measured).saturating_sub(counted - paused.min(counted));
    measured.saturating_add(counted) / 3 > own / 2 && measured > own / 8
}

#[cfg(test)]
mod tests {
    use super::is_too_much;

    #[test]
    fn the_limit_is_raised_where_measured_calls_cost_too_much() {
        // Of 1000 ticks, measured calls have taken 800.
        assert!(is_too_much(1000, 800, 0));
        // One and a half times as much as the rest is not too much.
        assert!(!is_too_much(1000, 590, 0));
        // Calls that are only counted cost much, and of measured ones there are few.
        assert!(!is_too_much(2000, 50, 3000));
        assert!(is_too_much(2000, 200, 3000));
        // A clock that says nonsense.
        assert!(is_too_much(0, u64::MAX, u64::MAX));
        assert!(!is_too_much(0, 0, 0));
    }
}
