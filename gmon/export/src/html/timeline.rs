//! The calls of a trace on a line of time, as far as a report has room for them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use serde::Serialize;

use crate::html::shorter::shorter;

/// The most calls of all threads that a report contains.
const MAX_CALLS: usize = 60_000;
/// The most calls around one that a report contains.
const MAX_DEPTH: u32 = 300;
/// The most threads that a report has a line for.
const MAX_THREADS: usize = 400;

/// The calls of threads, the longest of each.
///
/// A call takes no longer than the one around it, so a call that is kept has all calls around it, but those that take as long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timeline {
    /// The names of functions.
    names: Vec<String>,
    /// Shorter ones, where there are any.
    short: Vec<Option<String>>,
    lanes: Vec<Lane>,
    /// The time of the last end.
    end: u64,
    /// The number of calls that are not here.
    #[serde(rename = "leftOut")]
    left_out: u64,
    /// The number of threads that are not here, with all their calls.
    #[serde(rename = "threadsLeftOut")]
    threads_left_out: u64,
}

/// The calls of a thread, or of one of its stacks, in columns sorted by time. Times are in nanoseconds since the start of the trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Lane {
    name: String,
    pid: u32,
    tid: u32,
    /// The indexes of names.
    function: Vec<u32>,
    /// The number of calls around each.
    depth: Vec<u32>,
    /// The difference from the row before.
    start: Vec<u64>,
    length: Vec<u64>,
}

/// A call that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// How long it took, in nanoseconds.
    pub length: u64,
    /// The number of calls around it, negated, so that of two calls that take as long the outer one is the greater.
    outer: Reverse<u32>,
    /// When it began, in nanoseconds since the start of the trace.
    pub start: u64,
    /// The index of its function's name.
    pub function: u32,
}

impl Span {
    pub fn new(function: u32, depth: u32, start: u64, length: u64) -> Span {
        Span { length, outer: Reverse(depth), start, function }
    }
}

/// Collects the calls of a trace.
#[derive(Default)]
pub struct Collector {
    lanes: Vec<(Lane, BinaryHeap<Reverse<Span>>)>,
    places: HashMap<(u32, u32, u32), Option<usize>>,
    names: Vec<String>,
    numbers: HashMap<String, u32>,
    calls: u64,
    threads_left_out: u64,
    end: u64,
}

impl Collector {
    /// Returns the index of a name.
    pub fn name(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// Adds a call of a thread on one of its stacks, of which 0 is its own. `name` is asked for when the thread is new.
    pub fn add(&mut self, (pid, tid, stack): (u32, u32, u32), name: impl FnOnce() -> String, span: Span) {
        self.calls += 1;
        self.end = self.end.max(span.start.saturating_add(span.length));
        if span.outer.0 >= MAX_DEPTH {
            return;
        }
        let lanes = &mut self.lanes;
        let place = *self.places.entry((pid, tid, stack)).or_insert_with(|| {
            if lanes.len() >= MAX_THREADS {
                return None;
            }
            let name = if stack == 0 { name() } else { format!("{}, stack {stack}", name()) };
            lanes.push((Lane { name, pid, tid, ..Lane::default() }, BinaryHeap::new()));
            Some(lanes.len() - 1)
        });
        let most = MAX_CALLS / lanes.len().max(1);
        let Some((_, spans)) = place.and_then(|place| lanes.get_mut(place)) else { return };
        if spans.len() < most {
            spans.push(Reverse(span));
        } else if let Some(mut shortest) = spans.peek_mut().filter(|shortest| shortest.0 < span) {
            *shortest = Reverse(span);
        }
    }

    /// Returns what is kept.
    pub fn finish(mut self) -> Timeline {
        let most = MAX_CALLS / self.lanes.len().max(1);
        self.threads_left_out = self.places.values().filter(|place| place.is_none()).count() as u64;
        let mut kept = 0;
        let lane = |(mut lane, mut spans): (Lane, BinaryHeap<Reverse<Span>>)| {
            while spans.len() > most {
                spans.pop();
            }
            kept += spans.len() as u64;
            let mut spans: Vec<Span> = spans.into_iter().map(|Reverse(span)| span).collect();
            spans.sort_by_key(|span| (span.start, span.outer.0));
            let mut before = 0;
            for span in spans {
                lane.function.push(span.function);
                lane.depth.push(span.outer.0);
                lane.start.push(span.start - before);
                lane.length.push(span.length);
                before = span.start;
            }
            lane
        };
        let lanes = self.lanes.into_iter().map(lane).collect();
        Timeline {
            short: shorter(self.names.iter().map(String::as_str)),
            names: self.names,
            lanes,
            end: self.end,
            left_out: self.calls - kept,
            threads_left_out: self.threads_left_out,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_calls_with_those_around_them() {
        let mut collector = Collector::default();
        let [main, leaf] = ["main", "leaf"].map(|name| collector.name(name));
        assert_eq!(collector.name("leaf"), leaf);
        let many = MAX_CALLS as u64 + 10;
        for at in 0..many {
            let length = if at == 7 { 1 } else { 5 };
            collector.add((1, 2, 0), || "t".into(), Span::new(leaf, 1, 10 * at, length));
        }
        collector.add((1, 2, 0), || unreachable!(), Span::new(main, 0, 0, 10 * many));
        let timeline = collector.finish();
        assert_eq!((timeline.left_out, timeline.end, timeline.lanes.len()), (11, 10 * many, 1));
        let lane = &timeline.lanes[0];
        assert_eq!((lane.depth[0], lane.function[0], lane.length[0]), (0, main, 10 * many));
        assert_eq!((lane.depth.len(), lane.length.contains(&1)), (MAX_CALLS, false));
    }

    #[test]
    fn threads_share_the_room() {
        let mut collector = Collector::default();
        let name = collector.name("f");
        for tid in 0..MAX_THREADS as u32 + 3 {
            for at in 0..200 {
                collector.add((1, tid, 0), || format!("t{tid}"), Span::new(name, 0, at, 1));
            }
        }
        collector.add((1, 0, 1), || "t0".into(), Span::new(name, 0, 0, 1));
        let timeline = collector.finish();
        assert_eq!((timeline.threads_left_out, timeline.lanes.len()), (4, MAX_THREADS));
        assert!(timeline.lanes.iter().all(|lane| lane.start.len() == MAX_CALLS / MAX_THREADS));
        let all = (MAX_THREADS as u64 + 3) * 200 + 1;
        assert_eq!(timeline.left_out, all - MAX_CALLS as u64);
    }
}
