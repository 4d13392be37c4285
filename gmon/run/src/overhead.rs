//! Taking the overhead of measured calls out of the times of functions.
//!
//! The overhead of a call is the same everywhere in this model, and a function of a few instructions may be measured shorter than that. Its
//! own time is 0 then, not negative, and what was taken out too much there is a *surplus*, which the inclusive times of its callers need
//! back: otherwise a function would take less time than what it calls. As in gprof, a function's surplus is its callers' by the number of
//! their calls.
//!
//! Those who measure know functions in a way of their own, `F`. All times are in ticks of the clock.

use std::collections::HashMap;
use std::hash::Hash;

use crate::below::{Below, Call};
use crate::ticks::{Arc, Function, Node, Thread};

/// What was measured on a thread, with the overhead.
#[derive(Clone, Debug)]
pub struct Recorded<F> {
    /// The overhead of a call inside of its measured interval, as it was calibrated.
    pub inside: u64,
    /// The part outside.
    pub outside: u64,
    /// How much of that has been taken out of the own times of callers.
    pub outside_taken: u64,
    /// The overhead of a call that was only counted, as it was calibrated.
    pub short: u64,
    /// The part of it that is in no time, because it was taken out as the time passed.
    pub short_taken: u64,
    pub arcs: Vec<RecordedArc<F>>,
    pub functions: Vec<RecordedFunction<F>>,
    /// The calling-context tree, parents before their children.
    pub nodes: Vec<RecordedNode<F>>,
}

/// What was measured of an arc.
#[derive(Clone, Copy, Debug)]
pub struct RecordedArc<F> {
    /// `None` if no measured function was running.
    pub caller: Option<F>,
    pub callee: F,
    /// The number of measured calls, with the open ones.
    pub calls: u64,
    pub open: u64,
    /// The number of calls that were only counted.
    pub counted: u64,
    pub own: i64,
    /// The part of `own` in which the thread waited.
    pub waited: u64,
    pub inclusive: u64,
    /// The number of calls in `inclusive`, and of those that were made within them.
    pub outermost: u64,
    pub within: u64,
    /// The least and the greatest duration of a call that has ended, without the overhead.
    pub min: u64,
    pub max: u64,
}

/// What was measured of a function beside its arcs.
#[derive(Clone, Debug)]
pub struct RecordedFunction<F> {
    pub function: F,
    pub inclusive: u64,
    /// The number of calls in `inclusive`, and of those that were made within them.
    pub primitive: u64,
    pub within: u64,
    /// The numbers of calls that have ended, by interval of durations.
    pub histogram: Vec<u64>,
}

/// A node of the calling-context tree.
#[derive(Clone, Copy, Debug)]
pub struct RecordedNode<F> {
    pub parent: Option<u32>,
    /// `None` stands for all calls for which there was no room for nodes of their own.
    pub function: Option<F>,
    /// The number of measured calls.
    pub calls: u64,
    /// The number of calls that were only counted.
    pub counted: u64,
    pub own: i64,
    /// The part of `own` in which the thread waited.
    pub waited: u64,
}

impl<F> Default for Recorded<F> {
    fn default() -> Self {
        Recorded {
            inside: 0,
            outside: 0,
            outside_taken: 0,
            short: 0,
            short_taken: 0,
            arcs: Vec::new(),
            functions: Vec::new(),
            nodes: Vec::new(),
        }
    }
}

/// How many times what was calibrated a call has cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// One that was measured.
    pub measured: f64,
    /// One that was only counted.
    pub counted: f64,
}

impl Factors {
    /// Each call has cost what was calibrated.
    pub const CALIBRATED: Self = Factors { measured: 1.0, counted: 1.0 };
}

/// The overhead of a call.
#[derive(Clone, Copy, Debug)]
struct Cost {
    inside: f64,
    outside: f64,
    /// The part outside that has been taken out of the callers' own times already.
    taken: f64,
    /// What calls that were only counted cost beyond what is in no time.
    short: f64,
}

impl Cost {
    /// Returns the overhead in a time that contains so many calls, of which so many are its own.
    fn within(&self, calls: u64, own: u64) -> f64 {
        calls as f64 * (self.inside + self.outside) + own as f64 * self.inside
    }

    /// Returns the own time of so many calls, which have made so many others, and such that were only counted, without the overhead. It
    /// may be negative.
    fn own(&self, recorded: f64, calls: f64, made: f64, counted: f64) -> f64 {
        recorded - calls * self.inside - made * (self.outside - self.taken) - counted * self.short
    }

    /// Returns the own time of what is summed up, without the overhead.
    fn own_of(&self, sum: &Sum) -> f64 {
        self.own(sum.own, sum.calls, sum.made, sum.counted)
    }
}

/// What the calls of a function sum up to.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    /// The own time with the overhead.
    own: f64,
    calls: f64,
    /// The number of the calls that it has made.
    made: f64,
    /// The number of those beside them that were only counted.
    counted: f64,
}

impl<F: Copy + Eq + Hash> Recorded<F> {
    /// Returns the number of all measured calls.
    pub fn calls(&self) -> f64 {
        self.arcs.iter().map(|arc| arc.calls as f64).sum()
    }

    /// Returns the number of all calls that were only counted.
    pub fn counted(&self) -> f64 {
        self.arcs.iter().map(|arc| arc.counted as f64).sum()
    }

    /// Returns for how long the thread has waited in its calls, as far as that was seen.
    pub fn waited(&self) -> f64 {
        self.arcs.iter().map(|arc| arc.waited as f64).sum()
    }

    /// Returns the sum of the own times of functions, none of which is negative.
    pub fn own(&self, factors: Factors) -> f64 {
        let cost = self.cost(factors);
        self.sums().values().map(|sum| cost.own_of(sum).max(0.0)).sum()
    }

    /// Returns by how much more was taken out as the time passed, for calls that were only counted, than these have cost.
    pub fn taken_too_much(&self, factors: Factors) -> u64 {
        (-self.cost(factors).short * self.counted()).max(0.0).round() as u64
    }

    /// Returns the times without the overhead.
    pub fn without_overhead(&self, factors: Factors) -> Thread<F> {
        let (cost, sums) = (self.cost(factors), self.sums());
        let surplus = self.surplus(&sums, &cost);
        let counted = self.counted_within(&sums, &cost);
        // Nothing negative is left by a cast.
        let ticks = |ticks: f64| ticks.round() as u64;
        let parts = surplus.arcs.iter().zip(&counted.arcs);
        let arcs = self.arcs.iter().zip(parts).map(|(arc, (surplus, short))| {
            let share = share(&sums, arc);
            let inclusive = arc.inclusive as f64 - cost.within(arc.within, arc.outermost);
            let inclusive = ticks(inclusive + surplus - short);
            // Which of a function's arcs has made its calls is not known.
            let Sum { made, counted, .. } = sum_of(&sums, arc.callee);
            Arc {
                caller: arc.caller,
                callee: arc.callee,
                calls: arc.calls,
                open: arc.open.min(arc.calls),
                counted: arc.counted,
                own: cost.own(arc.own as f64, arc.calls as f64, share * made, share * counted).round() as i64,
                waited: arc.waited,
                inclusive,
                min: arc.min.min(inclusive),
                max: arc.max.min(inclusive),
            }
        });
        let arcs: Vec<Arc<F>> = arcs.collect();
        // A function takes at least as long as what it calls.
        let mut called: HashMap<F, u64> = HashMap::new();
        for arc in arcs.iter().filter(|arc| arc.caller != Some(arc.callee)) {
            if let Some(caller) = arc.caller {
                let longest = called.entry(caller).or_default();
                *longest = arc.inclusive.max(*longest);
            }
        }
        let functions = self.functions.iter().map(|of| {
            let inclusive = of.inclusive as f64 - cost.within(of.within, of.primitive);
            let Sum { own, made, .. } = sum_of(&sums, of.function);
            Function {
                function: of.function,
                primitive: of.primitive,
                inclusive: ticks(inclusive + surplus.function(of.function) - counted.function(of.function))
                    .max(called.get(&of.function).copied().unwrap_or(0)),
                inclusive_raw: of.inclusive,
                own_raw: ticks(own + made * cost.taken),
                histogram: of.histogram.clone(),
            }
        });
        Thread {
            overhead: ticks(self.calls() * (cost.inside + cost.outside) + self.counted() * cost.short),
            functions: functions.collect(),
            nodes: self.nodes_without(&cost, &sums),
            arcs,
            ..Thread::default()
        }
    }

    fn cost(&self, factors: Factors) -> Cost {
        let [inside, outside, taken] =
            [self.inside, self.outside, self.outside_taken].map(|ticks| ticks as f64);
        let short = self.short as f64 * factors.counted - self.short_taken as f64;
        Cost { inside: inside * factors.measured, outside: outside * factors.measured, taken, short }
    }

    fn sums(&self) -> HashMap<F, Sum> {
        let mut sums: HashMap<F, Sum> = HashMap::new();
        for arc in &self.arcs {
            let calls = arc.calls as f64;
            let callee = sums.entry(arc.callee).or_default();
            callee.own += arc.own as f64;
            callee.calls += calls;
            if let Some(caller) = arc.caller {
                let caller = sums.entry(caller).or_default();
                caller.made += calls;
                caller.counted += arc.counted as f64;
            }
        }
        sums
    }

    /// Returns the surplus of each function and of what it has called. A function's is its callers' by the number of their calls.
    fn surplus(&self, sums: &HashMap<F, Sum>, cost: &Cost) -> Below<F> {
        self.below(|function| (-cost.own_of(&sum_of(sums, function))).max(0.0), |arc| arc.calls as f64)
    }

    /// Returns what calls that were only counted have cost in each function and in what it has called, beyond what is in no time. Within which
    /// of a function's calls that was is not known: it is divided among its callers by how long they have waited for it.
    fn counted_within(&self, sums: &HashMap<F, Sum>, cost: &Cost) -> Below<F> {
        self.below(|function| sum_of(sums, function).counted * cost.short, |arc| arc.inclusive as f64)
    }

    /// Returns what functions have that have `own` themselves, each with what those have that it calls. A function's is divided among its
    /// callers by the weights of their arcs.
    fn below(&self, own: impl Fn(F) -> f64, weight: impl Fn(&RecordedArc<F>) -> f64) -> Below<F> {
        let lasted: HashMap<F, u64> = self.functions.iter().map(|of| (of.function, of.inclusive)).collect();
        let call = |arc: &RecordedArc<F>| Call {
            caller: arc.caller,
            callee: arc.callee,
            weight: weight(arc),
            lasted: arc.inclusive as f64,
        };
        let calls: Vec<Call<F>> = self.arcs.iter().map(call).collect();
        Below::of(&calls, own, |function| lasted.get(&function).copied().unwrap_or(0) as f64)
    }

    /// Returns the calling-context tree without the overhead.
    fn nodes_without(&self, cost: &Cost, sums: &HashMap<F, Sum>) -> Vec<Node<F>> {
        let made = self.by_nodes(sums, |node| node.calls, |sum| sum.made);
        let counted = self.by_nodes(sums, |node| node.counted, |sum| sum.counted);
        let corrected = self.nodes.iter().zip(made).zip(counted).map(|((node, made), counted)| {
            let own = cost.own(node.own as f64, node.calls as f64, made, counted);
            (node.function, own.round() as i64)
        });
        let owns = not_negative(&corrected.collect::<Vec<_>>());
        let node = |(node, own): (&RecordedNode<F>, u64)| Node {
            parent: node.parent,
            function: node.function,
            calls: node.calls.saturating_add(node.counted),
            own,
            waited: node.waited,
        };
        self.nodes.iter().zip(owns).map(node).collect()
    }

    /// Returns how many calls each node has made: together as many as its function has made, which `made` tells. A recursive call may be at the
    /// node of an outer one, so the numbers of calls of the nodes below say only how those of a function are divided among its nodes.
    fn by_nodes(
        &self,
        sums: &HashMap<F, Sum>,
        calls: impl Fn(&RecordedNode<F>) -> u64,
        made: impl Fn(&Sum) -> f64,
    ) -> Vec<f64> {
        let mut below = vec![0.0; self.nodes.len()];
        for node in &self.nodes {
            if let Some(below) = node.parent.and_then(|parent| below.get_mut(parent as usize)) {
                *below += calls(node) as f64;
            }
        }
        let mut by_function: HashMap<F, f64> = HashMap::new();
        for (node, below) in self.nodes.iter().zip(&below) {
            if let Some(function) = node.function {
                *by_function.entry(function).or_default() += below;
            }
        }
        let of_node = |(node, below): (&RecordedNode<F>, f64)| {
            let Some(function) = node.function else { return below };
            let sum = sum_of(sums, function);
            let share = match by_function.get(&function) {
                Some(&all) if all > 0.0 => below / all,
                _ => node.calls as f64 / sum.calls.max(1.0),
            };
            share * made(&sum)
        };
        self.nodes.iter().zip(below).map(of_node).collect()
    }
}

fn sum_of<F: Copy + Eq + Hash>(sums: &HashMap<F, Sum>, function: F) -> Sum {
    sums.get(&function).copied().unwrap_or_default()
}

/// Returns the share of an arc in the calls of the called function.
fn share<F: Copy + Eq + Hash>(sums: &HashMap<F, Sum>, arc: &RecordedArc<F>) -> f64 {
    arc.calls as f64 / sum_of(sums, arc.callee).calls.max(1.0)
}

/// Returns the own times of call paths, of which each has its function, so that none is negative and those of a function are together what
/// it has in all, or nothing if that is negative.
///
/// The overhead of a call is a mean, and on some paths a call costs less. To take such a time for 0 and to leave the others as they are
/// would give the function more time on its paths than it has.
fn not_negative<F: Copy + Eq + Hash>(paths: &[(F, i64)]) -> Vec<u64> {
    // Per function: the sum, and that of what is not negative.
    let mut sums: HashMap<F, (i128, u128)> = HashMap::new();
    for &(function, own) in paths {
        let (all, positive) = sums.entry(function).or_default();
        *all += i128::from(own);
        *positive += u128::from(own.max(0) as u64);
    }
    let own = |&(function, own): &(F, i64)| {
        let (all, positive) = sums.get(&function).copied().unwrap_or_default();
        let all = all.max(0) as u128;
        let share = u128::from(own.max(0) as u64).saturating_mul(all).checked_div(positive);
        share.map_or(0, |share| u64::try_from(share).unwrap_or(u64::MAX))
    };
    paths.iter().map(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arc(caller: Option<u32>, callee: u32, calls: u64, own: i64) -> RecordedArc<u32> {
        RecordedArc {
            caller,
            callee,
            calls,
            open: 0,
            counted: 0,
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
    fn recorded() -> Recorded<u32> {
        let arcs = vec![
            arc(None, 0, 1, 5000),
            arc(Some(0), 1, 10, 4000),
            arc(Some(0), 2, 100, 500),
            arc(Some(1), 2, 300, 1500),
        ];
        Recorded { inside: 10, outside: 20, outside_taken: 20, arcs, ..Recorded::default() }
    }

    #[test]
    fn own_times_are_not_negative_and_callers_get_the_surplus_back() {
        let recorded = recorded();
        assert_eq!((recorded.calls(), recorded.own(Factors::CALIBRATED)), (411.0, 4990.0 + 3900.0));
        let surplus = recorded.surplus(&recorded.sums(), &recorded.cost(Factors::CALIBRATED));
        let of = |number| surplus.function(number).round();
        // 400 calls of `tiny` were recorded with 2000 ticks, of which 4000 would be overhead; 300 of them are made by `outer`.
        assert_eq!((of(2), of(1), of(0)), (2000.0, 1500.0, 2000.0));
    }

    #[test]
    fn a_greater_overhead_takes_more_from_callers_too() {
        let recorded = recorded();
        let factors = Factors { measured: 2.0, ..Factors::CALIBRATED };
        let (twice, outer) = (recorded.cost(factors), sum_of(&recorded.sums(), 1));
        assert_eq!(twice.own_of(&outer), 4000.0 - 10.0 * 20.0 - 300.0 * 20.0);
        assert!(recorded.own(factors) < recorded.own(Factors::CALIBRATED));
        assert_eq!(twice.within(300, 10), 300.0 * 60.0 + 10.0 * 20.0);
    }

    #[test]
    fn counted_calls_cost_their_callers() {
        let mut recorded = Recorded { short: 20, short_taken: 15, ..recorded() };
        // `outer` has made 1000 calls of `tiny` more that were only counted.
        recorded.arcs[3].counted = 1000;
        // All but what was taken out already would be more than there is.
        assert_eq!(recorded.own(Factors::CALIBRATED), 4990.0);
        let factors = Factors { counted: 0.8, ..Factors::CALIBRATED };
        let (cost, outer) = (recorded.cost(factors), sum_of(&recorded.sums(), 1));
        assert_eq!(cost.own_of(&outer).round(), 4000.0 - 10.0 * 10.0 - 1000.0);
        assert_eq!(recorded.own(factors).round(), 4990.0 + 2900.0);
        let thread = recorded.without_overhead(factors);
        let arc = thread.arcs.iter().find(|arc| arc.caller == Some(1)).expect("an arc");
        assert_eq!((arc.calls, arc.counted), (300, 1000));
        assert_eq!(recorded.taken_too_much(factors), 0);
        // A call has cost 10 ticks, 5 fewer than were taken out.
        assert_eq!(recorded.taken_too_much(Factors { counted: 0.5, ..Factors::CALIBRATED }), 5000);
    }

    #[test]
    fn a_circle_ends() {
        let arcs = vec![arc(None, 0, 1, 0), arc(Some(0), 1, 100, 0), arc(Some(1), 0, 99, 0)];
        let recorded = Recorded { inside: 10, arcs, ..Recorded::default() };
        let surplus = recorded.surplus(&recorded.sums(), &recorded.cost(Factors::CALIBRATED));
        // Each of the two has all that the circle has.
        assert_eq!((surplus.function(0), surplus.function(1), surplus.arcs[0]), (2000.0, 2000.0, 2000.0));
    }

    #[test]
    fn paths_have_the_time_of_their_function() {
        // What is negative on a path is taken from the function's other ones; functions do not pay for each other.
        assert_eq!(not_negative(&[(1, 600), (2, 50), (1, -200), (1, 200)]), [450, 50, 0, 150]);
        assert_eq!(
            not_negative(&[(1, 7), (1, 0), (2, i64::MAX), (2, i64::MAX)]),
            [7, 0, i64::MAX as u64, i64::MAX as u64]
        );
        // The time of a function is not negative either.
        assert_eq!(not_negative(&[(1, 5), (1, -10), (2, -1)]), [0, 0, 0]);
        assert_eq!(not_negative(&[(1, i64::MIN), (1, i64::MAX)]), [0, 0]);
        assert!(not_negative::<u32>(&[]).is_empty());
    }
}
