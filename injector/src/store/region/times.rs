//! Reads the measured durations of one thread, whatever its process has written there.

use std::collections::HashMap;
use std::io;

use gprofinject_abi::region::NO_FUNCTION;
use gprofinject_abi::times::{
    ArcTimes, BUCKETS, Chain, FunctionTimes, Kind, OpenCall, PathNode, Record, TimesHeader, UNIT,
};
use zerocopy::FromBytes;

/// What was measured of a thread's calls, in ticks. Open calls are closed at the end of the process, and counted as open.
#[derive(Debug, Default)]
pub(crate) struct ThreadTimes {
    pub(crate) tid: u32,
    /// How long the thread lived from its first measured call to its last one, or to the end of the process if some were open.
    pub(crate) life: u64,
    /// The parts of the overhead of a call that are inside and outside of its interval.
    pub(crate) inside: u64,
    pub(crate) outside: u64,
    /// The number of calls that were not measured.
    pub(crate) unmeasured: u64,
    pub(crate) arcs: Vec<Arc>,
    pub(crate) functions: Vec<Function>,
    /// The calling-context tree; parents come before their children.
    pub(crate) nodes: Vec<Node>,
}

/// What was measured of an arc, with the overhead but for the part outside of the calls that the called function makes.
#[derive(Clone, Debug)]
pub(crate) struct Arc {
    /// The number of the caller, or [`NO_FUNCTION`].
    pub(crate) caller: u32,
    pub(crate) callee: u32,
    /// The number of calls, with the open ones.
    pub(crate) calls: u64,
    pub(crate) open: u64,
    pub(crate) own: i64,
    pub(crate) inclusive: u64,
    /// The number of calls in `inclusive`, and of those that were made within them.
    pub(crate) outermost: u64,
    pub(crate) within: u64,
    /// The least and the greatest duration of a call that has ended, without the overhead.
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) histogram: [u64; BUCKETS],
}

/// What was measured of a function beside its arcs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub(crate) number: u32,
    pub(crate) inclusive: u64,
    pub(crate) within: u64,
    pub(crate) primitive: u64,
}

/// A node of the calling-context tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    /// The index of the parent in the list; `None` if the function has no hooked caller.
    pub(crate) parent: Option<u32>,
    /// The number of the function, or [`gprofinject_abi::times::REST`].
    pub(crate) function: u32,
    pub(crate) calls: u64,
    pub(crate) own: i64,
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
        let mut at = 0_usize;
        while let Some(Record { kind, units }) = value::<Record>(area, at) {
            let len = units as usize * UNIT as usize;
            if len == 0 || len > area.len() - at {
                break;
            }
            let offset = at as u64;
            match kind.get() {
                Some(Kind::Arc) => insert(&mut records.arcs, area, at),
                Some(Kind::Function) => insert(&mut records.functions, area, at),
                Some(Kind::Node) => insert(&mut records.nodes, area, at),
                Some(Kind::Chain) => insert(&mut records.chains, area, at),
                Some(Kind::Calls) => {
                    for n in 1..u64::from(units) {
                        let at = offset + n * UNIT;
                        insert(&mut records.calls, area, at as usize);
                    }
                }
                Some(Kind::Free) | None => break,
            }
            at += len;
        }
        records
    }
}

fn value<T: FromBytes>(area: &[u8], at: usize) -> Option<T> {
    T::read_from_prefix(area.get(at..)?).ok().map(|(value, _)| value)
}

fn insert<T: FromBytes>(map: &mut HashMap<u64, T>, area: &[u8], at: usize) {
    if let Some(value) = value(area, at) {
        map.insert(at as u64, value);
    }
}

/// Reads what a thread has measured. `area` are its records, and `start` is the offset of the area in the thread block. The
/// process has ended at `end`, by the clock of the measurements; `None` if that is not known. It was about to execute another
/// program at `executed`, if that is not 0.
pub(super) fn read(
    tid: u32,
    header: &TimesHeader,
    start: u64,
    area: &[u8],
    end: Option<u64>,
    executed: u64,
) -> io::Result<ThreadTimes> {
    let mut records = Records::read(area);
    let offset = |address: u64| address.wrapping_sub(header.base).wrapping_sub(start);
    // If a call has ended since, the execution has failed.
    let has_executed = executed != 0 && executed.wrapping_sub(header.paused) >= header.last;
    let end = if has_executed { Some(executed) } else { end };
    let end = end.map_or(header.last, |end| end.wrapping_sub(header.paused).max(header.last));
    let mut open_arcs: HashMap<u64, u64> = HashMap::new();
    let mut is_open = false;
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
            if let Some(arc) = records.arcs.get_mut(&offset(call.arc)) {
                *open_arcs.entry(offset(call.arc)).or_default() += 1;
                arc.own = arc.own.wrapping_add(own as i64);
                arc.open = arc.open.saturating_sub(1);
                let is_outermost = arc.open == 0;
                if is_outermost {
                    arc.inclusive = arc.inclusive.saturating_add(lasted);
                    arc.within = arc.within.saturating_add(within);
                } else {
                    arc.nested = arc.nested.saturating_add(1);
                }
                if let Some(function) = records.functions.get_mut(&offset(arc.function)) {
                    function.open = function.open.saturating_sub(1);
                    if is_outermost && function.open != 0 {
                        function.nested_inclusive = function.nested_inclusive.saturating_add(lasted);
                        function.nested_within = function.nested_within.saturating_add(within);
                        function.nested = function.nested.saturating_add(1);
                    }
                }
            }
            if let Some(node) = records.nodes.get_mut(&offset(call.node)) {
                node.own = node.own.wrapping_add(own as i64);
                node.calls = node.calls.wrapping_add(1);
            }
        }
        next = offset(chain.next);
    }
    let last = if is_open { end } else { header.last };
    let mut times = ThreadTimes {
        tid,
        life: header.earlier.saturating_add(last.saturating_sub(header.first)),
        inside: header.inside,
        outside: header.outside,
        unmeasured: header.unmeasured,
        ..ThreadTimes::default()
    };
    times.arcs = records
        .arcs
        .iter()
        .map(|(at, arc)| {
            let histogram = arc.complete_histogram();
            let open = open_arcs.get(at).copied().unwrap_or(0);
            let all = histogram.iter().fold(open, |sum, count| sum.saturating_add(*count));
            Arc {
                caller: arc.caller,
                callee: arc.callee,
                calls: all.saturating_sub(arc.inherited),
                open,
                own: arc.own,
                inclusive: arc.inclusive,
                outermost: all.saturating_sub(arc.nested),
                within: arc.within,
                min: arc.min,
                max: arc.max,
                histogram,
            }
        })
        .filter(|arc| arc.calls > 0 || arc.own != 0)
        .collect();
    times.arcs.sort_by_key(|arc| (arc.callee, arc.caller));
    times.functions = functions(&times.arcs, records.functions.into_values());
    times.functions.sort_by_key(|function| function.number);
    times.nodes = tree(records.nodes.into_values().collect());
    Ok(times)
}

/// Returns what was measured of functions: the sums of their arcs without the calls that another arc's contained.
fn functions(arcs: &[Arc], records: impl Iterator<Item = FunctionTimes>) -> Vec<Function> {
    let mut sums: HashMap<u32, Function> = HashMap::new();
    let empty = |number| Function { number, inclusive: 0, within: 0, primitive: 0 };
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
    }
    sums.into_values().collect()
}

/// Returns the nodes without the roots, each with the index of its parent, which comes before it.
fn tree(mut nodes: Vec<PathNode>) -> Vec<Node> {
    // Nodes are numbered as they are made, and the parent is made first.
    nodes.sort_by_key(|node| node.number);
    let mut indices: HashMap<u32, u32> = HashMap::new();
    let mut tree: Vec<Node> = Vec::with_capacity(nodes.len());
    for node in nodes {
        if node.function == NO_FUNCTION {
            continue;
        }
        let parent = indices.get(&node.parent).copied();
        indices.insert(node.number, tree.len() as u32);
        let calls = if node.calls > u64::MAX / 2 { 0 } else { node.calls };
        tree.push(Node { parent, function: node.function, calls, own: node.own });
    }
    tree
}
