//! What the overhead of measured calls takes from the times of functions.
//!
//! The overhead of a call is the same everywhere in this model, and a function of a few instructions may be measured shorter than that. Its
//! own time is 0 then, not negative, and what was taken out too much there is a *surplus*, which the inclusive times of its callers need
//! back: otherwise a function would take less time than what it calls. As in gprof, a function's surplus is its callers' by the number of
//! their calls.

use std::collections::HashMap;

use gprofinject_abi::region::NO_FUNCTION;

use crate::store::region::times::{Arc, ThreadTimes};

/// The overhead of a call in ticks: the part inside of its measured interval, and the part outside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) inside: f64,
    pub(crate) outside: f64,
    /// The part outside that the agent has taken out of the callers' own times already.
    taken: f64,
}

impl Cost {
    /// Returns the overhead that is so many times what was calibrated.
    pub(crate) fn of(recorded: &ThreadTimes, factor: f64) -> Cost {
        let [inside, taken] = [recorded.inside, recorded.outside].map(|ticks| ticks as f64);
        Cost { inside: inside * factor, outside: taken * factor, taken }
    }

    /// Returns the overhead in a time that contains so many calls, of which so many are its own.
    pub(crate) fn within(&self, calls: u64, own: u64) -> f64 {
        calls as f64 * (self.inside + self.outside) + own as f64 * self.inside
    }

    /// Returns the own time of so many calls, which have made so many others, without the overhead. It may be negative.
    pub(crate) fn own(&self, recorded: f64, calls: f64, made: f64) -> f64 {
        recorded - calls * self.inside - made * (self.outside - self.taken)
    }
}

/// What the calls of a function sum up to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    /// The own time with the overhead.
    pub(crate) own: f64,
    pub(crate) calls: f64,
    /// The number of the calls that it has made.
    pub(crate) made: f64,
}

/// The functions of a thread by their numbers.
#[derive(Debug)]
pub(crate) struct Sums(HashMap<u32, Sum>);

impl Sums {
    pub(crate) fn of(recorded: &ThreadTimes) -> Sums {
        let mut sums: HashMap<u32, Sum> = HashMap::new();
        for arc in &recorded.arcs {
            let calls = arc.calls as f64;
            let callee = sums.entry(arc.callee).or_default();
            callee.own += arc.own as f64;
            callee.calls += calls;
            sums.entry(arc.caller).or_default().made += calls;
        }
        sums.remove(&NO_FUNCTION);
        Sums(sums)
    }

    /// Returns the sum of a function.
    pub(crate) fn get(&self, function: u32) -> Sum {
        self.0.get(&function).copied().unwrap_or_default()
    }

    /// Returns the number of all calls.
    pub(crate) fn calls(&self) -> f64 {
        self.0.values().map(|sum| sum.calls).sum()
    }

    /// Returns the sum of the own times without the overhead, none of which is negative.
    pub(crate) fn own(&self, cost: &Cost) -> f64 {
        self.0.values().map(|sum| cost.own(sum.own, sum.calls, sum.made).max(0.0)).sum()
    }

    /// Returns the surplus of each function and of what it has called.
    pub(crate) fn surplus(&self, arcs: &[Arc], cost: &Cost) -> HashMap<u32, f64> {
        /// Enough for the deepest call graphs: what is left of a circle falls by the share of the calls from outside of it each time.
        const ROUNDS: usize = 100;
        let surplus = |sum: &Sum| (-cost.own(sum.own, sum.calls, sum.made)).max(0.0);
        let own: HashMap<u32, f64> = self.0.iter().map(|(&number, sum)| (number, surplus(sum))).collect();
        let mut all = own.clone();
        for _ in 0..ROUNDS {
            let mut next = own.clone();
            for arc in arcs.iter().filter(|arc| arc.caller != arc.callee) {
                if let Some(caller) = next.get_mut(&arc.caller) {
                    *caller += self.share(arc) * all.get(&arc.callee).copied().unwrap_or(0.0);
                }
            }
            let differs =
                |(number, ticks): (&u32, &f64)| (ticks - next.get(number).unwrap_or(&0.0)).abs() >= 1.0;
            let is_over = !all.iter().any(differs);
            all = next;
            if is_over {
                break;
            }
        }
        all
    }

    /// Returns the share of an arc in the calls of the called function that other functions make.
    pub(crate) fn share(&self, arc: &Arc) -> f64 {
        arc.calls as f64 / self.get(arc.callee).calls.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arc(caller: u32, callee: u32, calls: u64, own: i64) -> Arc {
        Arc {
            caller,
            callee,
            calls,
            open: 0,
            own,
            waited: 0,
            inclusive: 0,
            outermost: calls,
            within: 0,
            min: 0,
            max: 0,
        }
    }

    /// main calls `outer` 10 times and `tiny` 100, and `outer` calls `tiny` 300 times, which takes less than the overhead.
    fn recorded() -> ThreadTimes {
        let arcs = vec![
            arc(NO_FUNCTION, 0, 1, 5000),
            arc(0, 1, 10, 4000),
            arc(0, 2, 100, 500),
            arc(1, 2, 300, 1500),
        ];
        ThreadTimes { inside: 10, outside: 20, arcs, ..ThreadTimes::default() }
    }

    #[test]
    fn own_times_are_not_negative_and_callers_get_the_surplus_back() {
        let recorded = recorded();
        let sums = Sums::of(&recorded);
        let cost = Cost::of(&recorded, 1.0);
        assert_eq!((sums.calls(), sums.own(&cost)), (411.0, 4990.0 + 3900.0));
        let surplus = sums.surplus(&recorded.arcs, &cost);
        let of = |number| surplus[&number].round();
        // 400 calls of `tiny` were recorded with 2000 ticks, of which 4000 would be overhead; 300 of them are made by `outer`.
        assert_eq!((of(2), of(1), of(0)), (2000.0, 1500.0, 2000.0));
    }

    #[test]
    fn a_greater_overhead_takes_more_from_callers_too() {
        let recorded = recorded();
        let sums = Sums::of(&recorded);
        let twice = Cost::of(&recorded, 2.0);
        let outer = sums.get(1);
        assert_eq!(twice.own(outer.own, outer.calls, outer.made), 4000.0 - 10.0 * 20.0 - 300.0 * 20.0);
        assert!(sums.own(&twice) < sums.own(&Cost::of(&recorded, 1.0)));
        assert_eq!(twice.within(300, 10), 300.0 * 60.0 + 10.0 * 20.0);
    }

    #[test]
    fn a_circle_ends() {
        let arcs = vec![arc(NO_FUNCTION, 0, 1, 0), arc(0, 1, 100, 0), arc(1, 0, 99, 0)];
        let recorded = ThreadTimes { inside: 10, arcs, ..ThreadTimes::default() };
        let sums = Sums::of(&recorded);
        let surplus = sums.surplus(&recorded.arcs, &Cost::of(&recorded, 1.0));
        assert!(surplus.values().all(|ticks| ticks.is_finite() && *ticks >= 1000.0), "{surplus:?}");
    }
}
