//! Reads the measured durations of one thread, whatever its process has written there.

use std::collections::HashMap;

use gmon_run::overhead::{Recorded, RecordedArc, RecordedFunction, RecordedNode};
use gprofinject_abi::region::NO_FUNCTION;
use gprofinject_abi::times::{
    ArcTimes, BUCKETS, Chain, FunctionTimes, Kind, OpenCall, PathNode, REST, TimesHeader, UNIT,
};
use zerocopy::FromBytes;

use crate::store::region::area::{self, Found};

/// What was measured of a thread's calls, in ticks. Open calls are closed at the end of the process, and counted as open.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadTimes {
    pub(crate) tid: u32,
    /// How long the thread lived from its first measured call to its last one, or to the end of the process if some were open.
    pub(crate) life: u64,
    /// The number of calls that were not measured.
    pub(crate) unmeasured: u64,
    /// Calls of arcs whose calls were shorter may have been only counted; 0 if all were measured.
    pub(crate) below: u64,
    /// The time for which other threads had the processor, which is in no other time; `None` if it is not known, nor when the thread
    /// waited.
    pub(crate) ready: Option<u64>,
    /// The CPU time in the kernel, in nanoseconds, as the agent last saw it.
    pub(crate) system_ns: u64,
    /// The standard deviation of what the thread found a call to cost while it ran, in ticks; 0 if it did not look.
    pub(crate) deviation: u64,
    /// How often the thread has calibrated the overhead of its calls.
    pub(crate) calibrations: u64,
    /// The time from the thread's last event to its end, if a call was open then.
    pub(crate) tail: Option<Tail>,
    /// The sums of its calls, by the numbers of functions.
    pub(crate) recorded: Recorded<u32>,
}

/// What a thread has done after its last event, in its innermost open call. The agent does not see whether it waited then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// The functions of the call's arc.
    pub(crate) caller: Option<u32>,
    pub(crate) callee: u32,
    pub(crate) lasted: u64,
    /// The index of its path among the nodes.
    pub(crate) node: Option<u32>,
    source: Source,
}

/// What a thread's times were read from.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    header: TimesHeader,
    start: u64,
    area: Vec<u8>,
    end: u64,
}

impl ThreadTimes {
    /// Returns the same if the open calls had ended so much earlier.
    pub(crate) fn ended_earlier(&self, ticks: u64) -> Option<ThreadTimes> {
        let Source { header, start, area, end } = &self.tail.as_ref()?.source;
        let mut times = read(self.tid, header, *start, area.clone(), end.saturating_sub(ticks));
        times.ready = times.ready.map(|ready| ready.saturating_add(ticks));
        Some(times)
    }
}

/// The records of a thread by their offsets in the area.
#[derive(Default)]
struct Records {
    arcs: HashMap<u64, ArcTimes>,
    functions: HashMap<u64, FunctionTimes>,
    nodes: HashMap<u64, PathNode>,
    calls: HashMap<u64, OpenCall>,
    chains: HashMap<u64, Chain>,
}

impl Records {
    /// Reads all records of an area. It ends where something else is.
    fn read(area: &[u8]) -> Records {
        let mut records = Records::default();
        for Found { kind, at, len } in area::records(area) {
            match kind {
                Kind::Arc => insert(&mut records.arcs, area, at),
                Kind::Function => insert(&mut records.functions, area, at),
                Kind::Node => insert(&mut records.nodes, area, at),
                Kind::Chain => insert(&mut records.chains, area, at),
                Kind::Calls => {
                    for at in (at..at + len).step_by(UNIT as usize).skip(1) {
                        insert(&mut records.calls, area, at);
                    }
                }
                Kind::Tally | Kind::Slots | Kind::Text | Kind::Free => {}
            }
        }
        records
    }
}

fn insert<T: FromBytes>(map: &mut HashMap<u64, T>, area: &[u8], at: usize) {
    if let Some(value) = area::value(area, at) {
        map.insert(at as u64, value);
    }
}

/// What a thread's clock has shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reached {
    /// The time of the last event, without pauses.
    pub(crate) last: u64,
    /// The sum of all pauses.
    pub(crate) paused: u64,
}

/// When the open calls of a process's threads end, by the clock of the measurements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessEnd {
    /// When the process has ended, if that is known.
    pub(crate) process: Option<u64>,
    /// When it was about to execute another program, as the agent says; 0 if it was not.
    pub(crate) executed: u64,
}

impl ProcessEnd {
    /// Returns when the open calls of a thread end, without pauses: when the process was about to execute another program, or when
    /// the thread ended, or else with the process; at the thread's last event if nothing is known. `ends` are those of the threads
    /// that had its number, the earliest first.
    pub(crate) fn of_thread(self, reached: Reached, mut ends: impl Iterator<Item = u64>) -> u64 {
        /// How much earlier, in ticks, an end may seem to be than the event before it, because the clocks are compared some time
        /// after: half a millisecond, or one.
        const SLACK: u64 = 1 << 20;
        let Reached { last, paused } = reached;
        let without_pauses = |at: u64| at.wrapping_sub(paused);
        let own = ends.find(|&end| without_pauses(end).saturating_add(SLACK) >= last);
        self.executed().or(own).or(self.process).map_or(last, |end| without_pauses(end).max(last))
    }

    /// Returns when the process has ended, or was about to execute another program, if that is known.
    pub(crate) fn of_process(self) -> Option<u64> {
        self.executed().or(self.process)
    }

    fn executed(self) -> Option<u64> {
        // The process can have written any number there.
        (self.executed != 0).then(|| self.process.map_or(self.executed, |process| process.min(self.executed)))
    }
}

/// Returns what a call cost inside and outside of its measured interval, and a call that was only counted, in ticks: the means of what the thread has found while
/// it ran, or else what was found before the program began.
fn calibrated(header: &TimesHeader) -> (u64, u64, u64) {
    // The process can have written any number there.
    let mean = |sum_256: u64, else_: u64| match header.calibrations {
        0 => else_,
        times => (sum_256 / times).saturating_add(128) >> 8,
    };
    (
        mean(header.calibrated_inside_256, header.inside),
        mean(header.calibrated_outside_256, header.outside),
        mean(header.calibrated_short_256, header.short_cost),
    )
}

/// Returns the standard deviation of what a thread found a call to cost while it ran, in ticks; 0 if it did not look.
fn deviation(header: &TimesHeader) -> u64 {
    let times = header.calibrations as f64;
    if times == 0.0 {
        return 0;
    }
    let mean =
        header.calibrated_inside_256.saturating_add(header.calibrated_outside_256) as f64 / 256.0 / times;
    (header.calibrated_square_256 as f64 / 256.0 / times - mean * mean).max(0.0).sqrt().round() as u64
}

/// Reads what a thread has measured. `area` are its records, and `start` is the offset of the area in the thread block. Its open
/// calls end at `end`, by the clock of the measurements, without pauses.
pub(super) fn read(tid: u32, header: &TimesHeader, start: u64, area: Vec<u8>, end: u64) -> ThreadTimes {
    let mut records = Records::read(&area);
    let offset = |address: u64| address.wrapping_sub(header.base).wrapping_sub(start);
    let mut open_arcs: HashMap<u64, u64> = HashMap::new();
    let mut is_open = false;
    let mut tail = None;
    let current = offset(header.chain);
    // A chain is visited once, whatever the list says.
    let mut next = offset(header.chains);
    while let Some(chain) = records.chains.remove(&next) {
        let is_current = next == current;
        let (mut at, until, begun) = match is_current {
            true => (offset(header.top), end, header.begun),
            false => (offset(chain.top), chain.since, chain.begun),
        };
        let mut open_calls = Vec::new();
        while let Some(call) = records.calls.remove(&at).filter(|call| call.outer != 0) {
            at = offset(call.outer);
            open_calls.push(call);
        }
        is_open |= is_current && !open_calls.is_empty();
        if let Some(innermost) = open_calls.first().filter(|_| is_current) {
            let lasted = until.saturating_sub(innermost.start.max(header.last));
            let arc = records.arcs.get(&offset(innermost.arc));
            let node = records.nodes.get(&offset(innermost.node)).map(|node| node.number);
            tail = arc.map(|&ArcTimes { caller, callee, .. }| (caller_of(caller), callee, lasted, node));
        }
        // Only those of the current chain are counted as open.
        for call in open_calls.iter().filter(|_| !is_current) {
            if let Some(arc) = records.arcs.get_mut(&offset(call.arc)) {
                arc.open = arc.open.saturating_add(1);
                if let Some(function) = records.functions.get_mut(&offset(arc.function)) {
                    function.open = function.open.saturating_add(1);
                }
            }
        }
        // What the inner one of two calls takes from the outer one's own time.
        let mut inner = 0_u64;
        for call in open_calls {
            let lasted = until.saturating_sub(call.start);
            let own = lasted.wrapping_sub(call.children).wrapping_sub(inner);
            let within = begun.wrapping_sub(call.begun);
            inner = lasted.wrapping_add(header.outside);
            // Those that a fork has left to this process are calls of its parent's.
            let count = u64::from(!call.is_inherited());
            if let Some(arc) = records.arcs.get_mut(&offset(call.arc)) {
                *open_arcs.entry(offset(call.arc)).or_default() += count;
                arc.own = arc.own.wrapping_add(own as i64);
                arc.open = arc.open.saturating_sub(1);
                let is_outermost = arc.open == 0;
                if is_outermost {
                    arc.inclusive = arc.inclusive.saturating_add(lasted);
                    arc.within = arc.within.saturating_add(within);
                } else {
                    arc.nested = arc.nested.saturating_add(count);
                }
                if let Some(function) = records.functions.get_mut(&offset(arc.function)) {
                    function.open = function.open.saturating_sub(1);
                    if is_outermost && function.open != 0 {
                        function.nested_inclusive = function.nested_inclusive.saturating_add(lasted);
                        function.nested_within = function.nested_within.saturating_add(within);
                        function.nested = function.nested.saturating_add(count);
                    }
                }
            }
            if let Some(node) = records.nodes.get_mut(&offset(call.node)) {
                node.own = node.own.wrapping_add(own as i64);
                node.calls = node.calls.saturating_add(count);
            }
        }
        next = offset(chain.next);
    }
    let last = if is_open { end } else { header.last };
    let (inside, outside, short) = calibrated(header);
    let mut recorded = Recorded {
        inside,
        outside,
        outside_taken: header.outside,
        short,
        short_taken: header.short_taken,
        ..Recorded::default()
    };
    let arcs = records.arcs.iter().map(|(at, arc)| {
        let open = open_arcs.get(at).copied().unwrap_or(0);
        let calls = arc.calls.saturating_add(open);
        RecordedArc {
            caller: caller_of(arc.caller),
            callee: arc.callee,
            calls,
            open,
            counted: arc.counted(),
            own: arc.own,
            waited: arc.waited,
            inclusive: arc.inclusive,
            outermost: calls.saturating_sub(arc.nested),
            within: arc.within,
            min: arc.min,
            max: arc.max,
        }
    });
    recorded.arcs = arcs.filter(|arc| arc.calls > 0 || arc.counted > 0 || arc.own != 0).collect();
    recorded.arcs.sort_by_key(|arc| (arc.callee, arc.caller));
    recorded.functions = functions(&recorded.arcs, records.functions.into_values());
    recorded.functions.sort_by_key(|function| function.function);
    let indices;
    (recorded.nodes, indices) = tree(records.nodes.into_values().collect());
    ThreadTimes {
        tid,
        life: header.earlier.saturating_add(last.saturating_sub(header.first)),
        unmeasured: header.unmeasured,
        below: header.short_below,
        ready: (header.seen != 0).then_some(header.ready),
        system_ns: header.seen_system_ns,
        deviation: deviation(header),
        calibrations: header.calibrations,
        tail: tail.map(|(caller, callee, lasted, node)| Tail {
            caller,
            callee,
            lasted,
            node: node.and_then(|node| indices.get(&node).copied()),
            source: Source { header: *header, start, area, end },
        }),
        recorded,
    }
}

/// Returns the calling function of a number, if there is one.
fn caller_of(number: u32) -> Option<u32> {
    (number != NO_FUNCTION).then_some(number)
}

/// Returns what was measured of functions: the sums of their arcs without the calls that another arc's contained.
fn functions(
    arcs: &[RecordedArc<u32>],
    records: impl Iterator<Item = FunctionTimes>,
) -> Vec<RecordedFunction<u32>> {
    let mut sums: HashMap<u32, RecordedFunction<u32>> = HashMap::new();
    let empty = |function| RecordedFunction {
        function,
        inclusive: 0,
        primitive: 0,
        within: 0,
        histogram: vec![0; BUCKETS],
    };
    for arc in arcs {
        let sum = sums.entry(arc.callee).or_insert_with(|| empty(arc.callee));
        sum.inclusive = sum.inclusive.saturating_add(arc.inclusive);
        sum.within = sum.within.saturating_add(arc.within);
        sum.primitive = sum.primitive.saturating_add(arc.outermost);
    }
    for record in records {
        let sum = sums.entry(record.number).or_insert_with(|| empty(record.number));
        sum.inclusive = sum.inclusive.saturating_sub(record.nested_inclusive);
        sum.within = sum.within.saturating_sub(record.nested_within);
        sum.primitive = sum.primitive.saturating_sub(record.nested);
        for (sum, count) in sum.histogram.iter_mut().zip(record.complete_histogram()) {
            *sum = sum.saturating_add(count);
        }
    }
    sums.into_values().collect()
}

/// Returns the indices of the nodes of an area in [`Recorded::nodes`], by their numbers.
pub(super) fn node_indices(area: &[u8]) -> HashMap<u32, u32> {
    tree(Records::read(area).nodes.into_values().collect()).1
}

/// Returns the nodes without the roots, each with the index of its parent, which comes before it; and their indices by their numbers.
fn tree(mut nodes: Vec<PathNode>) -> (Vec<RecordedNode<u32>>, HashMap<u32, u32>) {
    // Nodes are numbered as they are made, and the parent is made first.
    nodes.sort_by_key(|node| node.number);
    let mut indices: HashMap<u32, u32> = HashMap::new();
    let mut tree: Vec<RecordedNode<u32>> = Vec::with_capacity(nodes.len());
    for node in nodes {
        if node.function == NO_FUNCTION {
            continue;
        }
        let parent = indices.get(&node.parent).copied();
        indices.insert(node.number, tree.len() as u32);
        let function = Some(node.function).filter(|&function| function != REST);
        let PathNode { calls, counted, own, waited, .. } = node;
        tree.push(RecordedNode { parent, function, calls, counted, own, waited });
    }
    (tree, indices)
}
