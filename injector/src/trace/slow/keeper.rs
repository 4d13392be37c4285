//! The calls that are kept: the slowest ones.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gmon_run::{Slow, SlowCall, SlowEnd, SlowNode};

use crate::trace::messages::ThreadNames;
use crate::trace::slow::call::{Call, Gaps};
use crate::trace::slow::off::Off;
use crate::trace::slow::tree::{REST, ROOT};
use crate::trace::slow::typical::Typicals;

/// How long records of the scheduler are waited for after a call has ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which calls are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptCalls {
    /// The greatest number of calls.
    pub(crate) most: usize,
    /// The least duration.
    pub(crate) least: Duration,
}

/// Where and when a call ran.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The index of the program.
    pub(crate) program: u32,
    /// The number of the process in the run, and in the system.
    pub(crate) process: u32,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    /// The ticks of a nanosecond.
    pub(crate) ticks_per_ns: f64,
    /// The overhead of a call inside and outside of its interval, in ticks.
    pub(crate) inside: u64,
    pub(crate) outside: u64,
}

/// A kept call. Times are in ticks.
struct Kept {
    root: u32,
    place: Place,
    thread: String,
    arguments: String,
    start_unix_ns: u64,
    end_ticks: u64,
    duration: u64,
    overhead: u64,
    lost: u64,
    is_incomplete: bool,
    end: SlowEnd,
    nodes: Vec<Node>,
    gaps: Gaps,
    since: Instant,
}

struct Node {
    parent: Option<u32>,
    function: Option<u32>,
    calls: u64,
    own: u64,
    longest: u64,
    waiting: u64,
    ready: u64,
}

/// The calls that are kept, and what is typical of all.
pub(crate) struct Keeper {
    limits: KeptCalls,
    pub(crate) typicals: Typicals,
    /// By duration in nanoseconds, and the order in which they ended.
    kept: BTreeMap<(u64, u64), Kept>,
    next: u64,
    /// Whether the scheduler's records are read.
    knows_waits: bool,
}

impl Keeper {
    pub(crate) fn new(limits: KeptCalls) -> Keeper {
        let (typicals, kept) = (Typicals::default(), BTreeMap::new());
        Keeper { limits, typicals, kept, next: 0, knows_waits: false }
    }

    /// Forgets all calls.
    pub(crate) fn reset(&mut self) {
        *self = Keeper { knows_waits: self.knows_waits, ..Keeper::new(self.limits) };
    }

    /// Adds a call that has ended. `name` returns the number by which a function is known in all processes, `settle` gives the call the times
    /// off the processor that are known, and `tell` returns its arguments as text and when it began, in nanoseconds since 1970.
    pub(crate) fn end(
        &mut self,
        call: &mut Call,
        end: SlowEnd,
        place: Place,
        mut name: impl FnMut(u32) -> Option<u32>,
        settle: impl FnOnce(&mut Call),
        tell: impl FnOnce(&Call) -> (String, u64),
    ) {
        let Some(function) = name(call.tree.function()) else { return };
        let root = self.typicals.root(place.program, function);
        let calls = call.tree.calls();
        let overhead =
            place.inside.saturating_add(calls.saturating_sub(1).saturating_mul(place.inside + place.outside));
        let wall = call.last.saturating_sub(call.begin);
        let overhead = overhead.saturating_add(call.paused).min(wall);
        let duration = wall - overhead;
        let ns = (duration as f64 / place.ticks_per_ns) as u64;
        let is_slow = u128::from(ns) >= self.limits.least.as_nanos();
        let is_whole = !call.is_incomplete && end != SlowEnd::Open;
        if let Some(root) = self.typicals.get(root) {
            root.others = root.others.saturating_add(u64::from(!is_whole));
            root.slow = root.slow.saturating_add(u64::from(is_slow));
        }
        let least = self.kept.first_key_value().filter(|_| self.kept.len() >= self.limits.most);
        let is_kept = is_slow && least.is_none_or(|(&(least, _), _)| ns > least);
        if !is_kept && !is_whole {
            return;
        }
        if is_kept {
            settle(call);
        }
        call.tree.sum_up(place.inside, place.outside);
        if is_whole {
            self.typicals.add_call(root, duration, &mut call.tree, &mut name);
        }
        if !is_kept {
            return;
        }
        if self.kept.len() >= self.limits.most {
            self.kept.pop_first();
        }
        let (arguments, start_unix_ns) = tell(call);
        let nodes = copy(call, name);
        let kept = Kept {
            root,
            place,
            thread: String::new(),
            arguments,
            start_unix_ns,
            end_ticks: call.last,
            duration,
            overhead,
            lost: call.lost,
            is_incomplete: call.is_incomplete,
            end,
            nodes,
            gaps: std::mem::take(&mut call.gaps),
            since: Instant::now(),
        };
        self.next += 1;
        self.kept.insert((ns, self.next), kept);
    }

    /// Counts calls of a function of which it is not known when they ended.
    pub(crate) fn unknown(&mut self, program: u32, function: u32, calls: u64) {
        let root = self.typicals.root(program, function);
        if let Some(root) = self.typicals.get(root) {
            root.others = root.others.saturating_add(calls);
        }
    }

    /// Takes note that the scheduler's records are read.
    pub(crate) fn knows_waits(&mut self) {
        self.knows_waits = true;
    }

    /// Gives a time off the processor to the kept calls of a thread that have ended since.
    pub(crate) fn charge(&mut self, process: u32, tid: u32, off: Off) {
        for kept in self.kept.values_mut() {
            if (kept.place.process, kept.place.tid) != (process, tid) || off.from > kept.end_ticks {
                continue;
            }
            if let Some(charge) = kept.gaps.charge(off)
                && let Some(node) = kept.nodes.get_mut(charge.node as usize)
            {
                node.waiting = node.waiting.saturating_add(charge.waiting);
                node.ready = node.ready.saturating_add(charge.ready);
            }
        }
    }

    /// Forgets the gaps of calls that have ended long ago.
    pub(crate) fn tidy(&mut self) {
        let old = self.kept.values_mut().filter(|kept| kept.since.elapsed() > PATIENCE);
        old.for_each(|kept| kept.gaps.forget());
    }

    /// Gives the kept calls of a process the names of their threads.
    pub(crate) fn name_threads(&mut self, process: u32, names: &ThreadNames) {
        for kept in self.kept.values_mut().filter(|kept| kept.place.process == process) {
            if let Some(name) = names.get(&kept.place.tid) {
                kept.thread = name.to_string();
            }
        }
    }

    /// Returns what is known up to now.
    pub(crate) fn results(&self, ticks_per_ns: f64) -> Slow {
        let ns = |ticks: f64| (ticks / ticks_per_ns).round() as u64;
        let mut nodes = Vec::new();
        let mut typical = self.typicals.results(&mut nodes, ns);
        let all: Vec<&Kept> = self.kept.values().rev().collect();
        for (root, typical) in (0..).zip(&mut typical) {
            let kept = all.iter().filter(|kept| kept.root == root).count() as u64;
            let slow = self.typicals.slow_calls(root);
            // Without a least duration, every call is slow enough.
            typical.left_out = if self.limits.least.is_zero() { 0 } else { slow.saturating_sub(kept) };
        }
        let calls = all.iter().map(|kept| self.result(kept, &mut nodes, ns)).collect();
        Slow { typical, calls, nodes }
    }

    fn result(&self, kept: &Kept, nodes: &mut Vec<SlowNode>, ns: impl Fn(f64) -> u64) -> SlowCall {
        let first = nodes.len() as u32;
        let own = |node: &Node| node.waiting.min(node.own);
        let ready = |node: &Node| node.ready.min(node.own - own(node));
        let sum = |of: &dyn Fn(&Node) -> u64| {
            let ticks = kept.nodes.iter().map(of).fold(0_u64, u64::saturating_add);
            self.knows_waits.then(|| ns(ticks as f64))
        };
        nodes.extend(kept.nodes.iter().map(|node| SlowNode {
            parent: node.parent.map(|parent| first + parent),
            function: node.function,
            calls: node.calls,
            self_ns: ns(node.own as f64),
            longest_ns: ns(node.longest as f64),
            waiting_ns: ns(own(node) as f64),
            ready_ns: ns(ready(node) as f64),
            ..SlowNode::default()
        }));
        SlowCall {
            typical: kept.root,
            node: first,
            pid: kept.place.pid,
            tid: kept.place.tid,
            thread: kept.thread.clone(),
            arguments: kept.arguments.clone(),
            start_unix_ns: kept.start_unix_ns,
            duration_ns: ns(kept.duration as f64),
            overhead_ns: ns(kept.overhead as f64),
            waiting_ns: sum(&own),
            ready_ns: sum(&ready),
            lost_ns: ns(kept.lost as f64),
            is_incomplete: kept.is_incomplete,
            end: kept.end,
        }
    }
}

/// Returns the nodes of a call, parents before their children, and gives its gaps their numbers.
fn copy(call: &mut Call, mut name: impl FnMut(u32) -> Option<u32>) -> Vec<Node> {
    let visited = call.tree.visited();
    let numbers: BTreeMap<u32, u32> = visited.iter().copied().zip(0..).collect();
    let number = |index: u32| numbers.get(&index).copied();
    let nodes = visited.iter().filter_map(|&index| {
        let node = call.tree.node(index)?;
        Some(Node {
            parent: if index == ROOT { None } else { number(node.parent) },
            function: if index == REST { None } else { name(node.function) },
            calls: node.calls,
            own: node.own,
            longest: node.longest,
            waiting: node.waiting,
            ready: node.ready,
        })
    });
    let nodes = nodes.collect();
    call.gaps.renumber(|index| number(index).unwrap_or(u32::MAX));
    nodes
}
