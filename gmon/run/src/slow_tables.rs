//! The slowest calls as messages of a file, and the other way round.

use crate::columns::{Columns, Texts, distance_to, function, parent, successor};
use crate::error::ReadError;
use crate::slow::{Slow, SlowCall, SlowEnd, SlowNode, Typical};
use crate::wire;

/// The flag of an incomplete call; the numbers below it say how it ended.
const INCOMPLETE: u32 = 4;

/// Returns the messages of the three tables. `text` returns the index of a text.
pub(crate) fn written(
    slow: &Slow,
    mut text: impl FnMut(&str) -> i64,
) -> (wire::TypicalCalls, wire::SlowCalls, wire::SlowNodes) {
    let all = &slow.typical;
    let typical = wire::TypicalCalls {
        program: all.iter().map(|typical| typical.program).collect(),
        node: all.iter().map(|typical| typical.node).collect(),
        calls: all.iter().map(|typical| typical.calls).collect(),
        others: all.iter().map(|typical| typical.others).collect(),
        min_ns: all.iter().map(|typical| typical.min_ns).collect(),
        max_ns: all.iter().map(|typical| typical.max_ns).collect(),
        p99_ns: all.iter().map(|typical| typical.p99_ns).collect(),
        left_out: all.iter().map(|typical| typical.left_out).collect(),
    };
    let all = &slow.calls;
    let end = |call: &SlowCall| match call.end {
        SlowEnd::Returned => 0,
        SlowEnd::Left => 1,
        SlowEnd::Open => 2,
    };
    let known = |time: Option<u64>| time.map_or(0, |time| time.saturating_add(1));
    let calls = wire::SlowCalls {
        typical: all.iter().map(|call| call.typical).collect(),
        node: all.iter().map(|call| call.node).collect(),
        pid: all.iter().map(|call| call.pid).collect(),
        tid: all.iter().map(|call| call.tid).collect(),
        thread: all.iter().map(|call| text(&call.thread)).collect(),
        arguments: all.iter().map(|call| text(&call.arguments)).collect(),
        start_unix_ns: all.iter().map(|call| call.start_unix_ns).collect(),
        duration_ns: all.iter().map(|call| call.duration_ns).collect(),
        overhead_ns: all.iter().map(|call| call.overhead_ns).collect(),
        waiting_ns: all.iter().map(|call| known(call.waiting_ns)).collect(),
        ready_ns: all.iter().map(|call| known(call.ready_ns)).collect(),
        lost_ns: all.iter().map(|call| call.lost_ns).collect(),
        end: all.iter().map(|call| end(call) + if call.is_incomplete { INCOMPLETE } else { 0 }).collect(),
    };
    let all = &slow.nodes;
    let nodes = wire::SlowNodes {
        parent: all.iter().enumerate().map(|(at, node)| distance_to(at, node.parent)).collect(),
        function: all.iter().map(|node| successor(node.function)).collect(),
        calls: all.iter().map(|node| node.calls).collect(),
        self_ns: all.iter().map(|node| node.self_ns).collect(),
        longest_ns: all.iter().map(|node| node.longest_ns).collect(),
        waiting_ns: all.iter().map(|node| node.waiting_ns).collect(),
        ready_ns: all.iter().map(|node| node.ready_ns).collect(),
        present: all.iter().map(|node| node.present).collect(),
        median_ns: all.iter().map(|node| node.median_ns).collect(),
    };
    (typical, calls, nodes)
}

/// Returns what the messages say. Indexes of the model are not checked.
pub(crate) fn read(
    typical: &wire::TypicalCalls,
    calls: &wire::SlowCalls,
    nodes: &wire::SlowNodes,
    texts: &mut Texts,
) -> Result<Slow, ReadError> {
    Ok(Slow { typical: typical_of(typical)?, calls: calls_of(calls, texts)?, nodes: nodes_of(nodes)? })
}

fn typical_of(all: &wire::TypicalCalls) -> Result<Vec<Typical>, ReadError> {
    let len = all.node.len();
    Columns { table: "typical calls", len }.check(&[
        ("program", all.program.len()),
        ("calls", all.calls.len()),
        ("others", all.others.len()),
        ("min", all.min_ns.len()),
        ("max", all.max_ns.len()),
        ("p99", all.p99_ns.len()),
        ("left out", all.left_out.len()),
    ])?;
    let typical = |index: usize| Typical {
        program: all.program[index],
        node: all.node[index],
        calls: all.calls[index],
        others: all.others[index],
        min_ns: all.min_ns[index],
        max_ns: all.max_ns[index],
        p99_ns: all.p99_ns[index],
        left_out: all.left_out[index],
    };
    Ok((0..len).map(typical).collect())
}

fn calls_of(all: &wire::SlowCalls, texts: &mut Texts) -> Result<Vec<SlowCall>, ReadError> {
    let len = all.node.len();
    Columns { table: "slow calls", len }.check(&[
        ("function", all.typical.len()),
        ("pid", all.pid.len()),
        ("tid", all.tid.len()),
        ("thread", all.thread.len()),
        ("arguments", all.arguments.len()),
        ("start", all.start_unix_ns.len()),
        ("duration", all.duration_ns.len()),
        ("overhead", all.overhead_ns.len()),
        ("waiting", all.waiting_ns.len()),
        ("ready", all.ready_ns.len()),
        ("lost", all.lost_ns.len()),
        ("end", all.end.len()),
    ])?;
    let call = |index: usize| {
        let mut text = |text| texts.get(text).map_err(|error| error.of("slow call", index));
        let end = match all.end[index] & !INCOMPLETE {
            0 => SlowEnd::Returned,
            1 => SlowEnd::Left,
            2 => SlowEnd::Open,
            _ => return Err(ReadError::Entry { table: "slow call", index, what: "an unknown end" }),
        };
        Ok(SlowCall {
            typical: all.typical[index],
            node: all.node[index],
            pid: all.pid[index],
            tid: all.tid[index],
            thread: text(all.thread[index])?,
            arguments: text(all.arguments[index])?,
            start_unix_ns: all.start_unix_ns[index],
            duration_ns: all.duration_ns[index],
            overhead_ns: all.overhead_ns[index],
            waiting_ns: all.waiting_ns[index].checked_sub(1),
            ready_ns: all.ready_ns[index].checked_sub(1),
            lost_ns: all.lost_ns[index],
            is_incomplete: all.end[index] & INCOMPLETE != 0,
            end,
        })
    };
    (0..len).map(call).collect()
}

fn nodes_of(all: &wire::SlowNodes) -> Result<Vec<SlowNode>, ReadError> {
    let len = all.function.len();
    Columns { table: "slow nodes", len }.check(&[
        ("parent", all.parent.len()),
        ("calls", all.calls.len()),
        ("self", all.self_ns.len()),
        ("longest", all.longest_ns.len()),
        ("waiting", all.waiting_ns.len()),
        ("ready", all.ready_ns.len()),
        ("present", all.present.len()),
        ("median", all.median_ns.len()),
    ])?;
    let node = |index: usize| {
        Ok(SlowNode {
            parent: parent("slow node", index, all.parent[index])?,
            function: function("slow node", index, all.function[index])?,
            calls: all.calls[index],
            self_ns: all.self_ns[index],
            longest_ns: all.longest_ns[index],
            waiting_ns: all.waiting_ns[index],
            ready_ns: all.ready_ns[index],
            present: all.present[index],
            median_ns: all.median_ns[index],
        })
    };
    (0..len).map(node).collect()
}
