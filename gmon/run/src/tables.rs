//! The messages of a file -> a [`Recording`], one table after the other.

use crate::check::Invalid;
use crate::columns::{Columns, Texts, function, parent};
use crate::error::ReadError;
use crate::intervals::Intervals;
use crate::lines_tables;
use crate::model::{
    ArcTimes, Block, Calls, Clock, ClockSource, Ending, Function, FunctionTimes, Hits, Module, Node, Origin,
    Process, Program, Recording, Stack, Thread,
};
use crate::slow_tables;
use crate::values_tables;
use crate::wire;

/// The largest size of all texts of the model, in bytes. In the file, many of them may be one.
const MAX_TEXT: u64 = 1 << 30;

/// Returns what the messages say. Indexes of the model are not checked.
pub(crate) fn recording(profile: &wire::Profile, extension: wire::Extension) -> Result<Recording, ReadError> {
    let clock = extension.clock.unwrap_or_default();
    let mut texts = Texts { table: &profile.string_table, left: MAX_TEXT };
    let functions = functions(profile, &extension.function_sizes, &mut texts)?;
    let calls = calls(&extension.calls.unwrap_or_default(), &functions)?;
    let hits = hits(&extension.hits.unwrap_or_default(), &functions)?;
    let intervals = extension.intervals.len();
    let runs = runs(&extension.runs.unwrap_or_default(), &mut texts)?;
    Ok(Recording {
        processes: processes(&extension.processes.unwrap_or_default(), &runs)?,
        processes_left_out: extension.processes_left_out,
        runs,
        programs: programs(&extension.programs.unwrap_or_default(), &mut texts)?,
        start_unix_ns: unsigned(profile.time_nanos),
        duration_ns: unsigned(profile.duration_nanos),
        clock: Clock {
            source: match clock.source {
                0 => ClockSource::Tsc,
                1 => ClockSource::ClockGettime,
                2 => ClockSource::Instructions,
                _ => return Err(ReadError::Entry { table: "clock", index: 0, what: "an unknown source" }),
            },
            ticks_per_second: clock.ticks_per_second,
            inside_ns: clock.inside_ns,
            outside_ns: clock.outside_ns,
            error_ns: clock.error_ns,
            counted_below_ns: clock.counted_below_ns,
        },
        sample_period_ns: unsigned(profile.period),
        intervals: Intervals::new(extension.intervals).ok_or(ReadError::Entry {
            table: "intervals",
            index: 0,
            what: "not in order, or too many",
        })?,
        modules: modules(profile, &extension.digests, &mut texts)?,
        functions,
        calls,
        hits,
        stacks: stacks(&extension.stacks.unwrap_or_default())?,
        lines: lines_tables::read(&extension.lines.unwrap_or_default())?,
        blocks: blocks(&extension.blocks.unwrap_or_default())?,
        threads: threads(&extension.threads.unwrap_or_default(), &mut texts)?,
        rows: rows(&extension.rows.unwrap_or_default(), intervals)?,
        arcs: arcs(&extension.arcs.unwrap_or_default())?,
        nodes: nodes(&extension.nodes.unwrap_or_default())?,
        nodes_lost: extension.nodes_lost,
        slow: slow_tables::read(
            &extension.typical_calls.unwrap_or_default(),
            &extension.slow_calls.unwrap_or_default(),
            &extension.slow_nodes.unwrap_or_default(),
            &mut texts,
        )?,
        values: values_tables::read(&extension.values.unwrap_or_default(), &mut texts)?,
    })
}

fn modules(profile: &wire::Profile, digests: &[u64], texts: &mut Texts) -> Result<Vec<Module>, ReadError> {
    let module = |(index, mapping): (usize, &wire::Mapping)| {
        let wrong = |what| ReadError::Entry { table: "mapping", index, what };
        if mapping.id != index as u64 + 1 {
            return Err(wrong("ids are not in order"));
        }
        let mut text = |text| texts.get(text).map_err(|error| error.of("mapping", index));
        Ok(Module {
            path: text(mapping.filename)?,
            build_id: bytes(&text(mapping.build_id)?)
                .ok_or_else(|| wrong("a build-id that is not hexadecimal"))?,
            digest: digests.get(index).copied().unwrap_or(0),
            start: mapping.memory_start,
            limit: mapping.memory_limit,
            offset: mapping.file_offset,
        })
    };
    profile.mapping.iter().enumerate().map(module).collect()
}

fn functions(profile: &wire::Profile, sizes: &[u64], texts: &mut Texts) -> Result<Vec<Function>, ReadError> {
    let function = |(index, &size): (usize, &u64)| {
        let wrong = |what| ReadError::Entry { table: "function", index, what };
        let missing = || wrong("it is not there");
        let function = profile.function.get(index).ok_or_else(missing)?;
        let location = profile.location.get(index).ok_or_else(missing)?;
        let id = index as u64 + 1;
        if (function.id, location.id) != (id, id) {
            return Err(wrong("ids are not in order"));
        }
        let module = location.mapping_id.checked_sub(1).and_then(|module| u32::try_from(module).ok());
        let mut text = |text| texts.get(text).map_err(|error| error.of("function", index));
        Ok(Function {
            name: text(function.system_name)?,
            module: module.ok_or_else(|| wrong("no module"))?,
            address: location.address,
            size,
            file: text(function.filename)?,
            line: u32::try_from(function.start_line).map_err(|_| wrong("a line that is no 32-bit number"))?,
        })
    };
    sizes.iter().enumerate().map(function).collect()
}

fn runs(runs: &wire::Runs, texts: &mut Texts) -> Result<Vec<Origin>, ReadError> {
    let len = runs.id.len();
    Columns { table: "runs", len }.check(&[
        ("host", runs.host.len()),
        ("rank", runs.rank.len()),
        ("start", runs.start_unix_ns.len()),
        ("duration", runs.duration_ns.len()),
    ])?;
    let run = |index: usize| {
        let rank = u32::try_from(runs.rank[index].wrapping_sub(1)).ok();
        Ok(Origin {
            id: runs.id[index],
            host: texts.get(runs.host[index]).map_err(|error| error.of("run", index))?,
            rank,
            start_unix_ns: runs.start_unix_ns[index],
            duration_ns: runs.duration_ns[index],
        })
    };
    (0..len).map(run).collect()
}

fn programs(programs: &wire::Programs, texts: &mut Texts) -> Result<Vec<Program>, ReadError> {
    let len = programs.name.len();
    Columns { table: "programs", len }.check(&[
        ("module", programs.module.len()),
        ("processes", programs.processes.len()),
        ("pid", programs.pid.len()),
        ("elsewhere", programs.elsewhere.len()),
        ("overhead", programs.overhead.len()),
    ])?;
    if !programs.label.is_empty() {
        Columns { table: "programs", len }.check(&[("label", programs.label.len())])?;
    }
    let program = |index: usize| {
        let mut text = |text| texts.get(text).map_err(|error| error.of("program", index));
        let label = programs.label.get(index).copied();
        Ok(Program {
            name: text(programs.name[index])?,
            label: label.map_or_else(|| Ok(String::new()), text)?,
            module: programs.module[index],
            processes: programs.processes[index],
            pid: programs.pid[index],
            elsewhere: programs.elsewhere[index],
            overhead: programs.overhead[index],
        })
    };
    (0..len).map(program).collect()
}

fn processes(processes: &wire::Processes, runs: &[Origin]) -> Result<Vec<Process>, ReadError> {
    let len = processes.pid.len();
    Columns { table: "processes", len }.check(&[
        ("program", processes.program.len()),
        ("parent", processes.parent.len()),
        ("run", processes.run.len()),
        ("begin", processes.begin_us.len()),
        ("life", processes.life_us.len()),
        ("ending", processes.ending.len()),
        ("calls", processes.calls.len()),
        ("samples", processes.samples.len()),
        ("self", processes.self_ns.len()),
    ])?;
    let (mut pid, mut parent, mut begin_us) = (0_u32, 0_u32, 0_u64);
    let process = |index: usize| {
        let wrong = |what| ReadError::Entry { table: "process", index, what };
        let number = |from: u32, distance: i64| {
            let number = i64::from(from).checked_add(distance).and_then(|number| u32::try_from(number).ok());
            number.ok_or_else(|| wrong("a number that is no 32-bit number"))
        };
        pid = number(pid, processes.pid[index])?;
        parent = number(parent, processes.parent[index])?;
        begin_us = begin_us.wrapping_add_signed(processes.begin_us[index]);
        let run = match processes.run[index].checked_sub(1) {
            None => 0,
            Some(run) => runs.get(run as usize).ok_or_else(|| wrong("a run that is not there"))?.id,
        };
        let number_of = |ending: u32| (ending & 0xff) as u8;
        let ending = match processes.ending[index] {
            0 => Ending::Unknown,
            ending if ending & !0xff == wire::EXITED => Ending::Exited(number_of(ending)),
            ending if ending & !0xff == wire::KILLED => Ending::Killed(number_of(ending)),
            _ => return Err(wrong("an unknown ending")),
        };
        Ok(Process {
            program: processes.program[index],
            pid,
            parent,
            run,
            begin_us,
            end_us: begin_us.saturating_add(processes.life_us[index]),
            ending,
            calls: processes.calls[index],
            samples: processes.samples[index],
            self_ns: processes.self_ns[index],
        })
    };
    (0..len).map(process).collect()
}

/// Returns the address of a function, or 0 if there is none.
fn address_of(functions: &[Function], function: Option<u32>) -> u64 {
    function.and_then(|function| functions.get(function as usize)).map_or(0, |function| function.address)
}

fn calls(calls: &wire::Calls, functions: &[Function]) -> Result<Vec<Calls>, ReadError> {
    let len = calls.callee.len();
    Columns { table: "calls", len }.check(&[
        ("program", calls.program.len()),
        ("caller", calls.caller.len()),
        ("site", calls.site.len()),
        ("calls", calls.calls.len()),
    ])?;
    let entry = |index: usize| {
        let caller = caller("calls", index, calls.caller[index])?;
        Ok(Calls {
            program: calls.program[index],
            caller,
            site: address_of(functions, caller).wrapping_add_signed(calls.site[index]),
            callee: calls.callee[index],
            calls: calls.calls[index],
        })
    };
    (0..len).map(entry).collect()
}

fn hits(hits: &wire::Hits, functions: &[Function]) -> Result<Vec<Hits>, ReadError> {
    let len = hits.function.len();
    Columns { table: "hits", len }.check(&[
        ("program", hits.program.len()),
        ("address", hits.address.len()),
        ("samples", hits.samples.len()),
    ])?;
    let entry = |index: usize| Hits {
        program: hits.program[index],
        function: hits.function[index],
        address: address_of(functions, Some(hits.function[index])).wrapping_add_signed(hits.address[index]),
        samples: hits.samples[index],
    };
    Ok((0..len).map(entry).collect())
}

fn stacks(stacks: &wire::Stacks) -> Result<Vec<Stack>, ReadError> {
    let len = stacks.function.len();
    Columns { table: "stacks", len }.check(&[
        ("program", stacks.program.len()),
        ("parent", stacks.parent.len()),
        ("samples", stacks.samples.len()),
    ])?;
    let stack = |index: usize| {
        Ok(Stack {
            program: stacks.program[index],
            parent: parent("stack", index, stacks.parent[index])?,
            function: function("stack", index, stacks.function[index])?,
            samples: stacks.samples[index],
        })
    };
    (0..len).map(stack).collect()
}

fn blocks(blocks: &wire::Blocks) -> Result<Vec<Block>, ReadError> {
    let len = blocks.address.len();
    Columns { table: "blocks", len }.check(&[
        ("program", blocks.program.len()),
        ("module", blocks.module.len()),
        ("executions", blocks.executions.len()),
    ])?;
    let mut address = 0_u64;
    let entry = |index: usize| {
        address = address.wrapping_add_signed(blocks.address[index]);
        let (program, module) = (blocks.program[index], blocks.module[index]);
        Block { program, module, address, executions: blocks.executions[index] }
    };
    Ok((0..len).map(entry).collect())
}

/// Returns the index of a caller, of which the file has the successor.
fn caller(table: &'static str, index: usize, above: u64) -> Result<Option<u32>, ReadError> {
    let Some(caller) = above.checked_sub(1) else { return Ok(None) };
    let wrong = |_| ReadError::Entry { table, index, what: "a caller that is not there" };
    u32::try_from(caller).map(Some).map_err(wrong)
}

fn threads(threads: &wire::Threads, texts: &mut Texts) -> Result<Vec<Thread>, ReadError> {
    let len = threads.tid.len();
    Columns { table: "threads", len }.check(&[
        ("pid", threads.pid.len()),
        ("name", threads.name.len()),
        ("life", threads.life_ns.len()),
        ("outside", threads.outside_ns.len()),
        ("overhead", threads.overhead_ns.len()),
        ("ready", threads.ready_ns.len()),
        ("samples", threads.samples.len()),
        ("program", threads.program.len()),
    ])?;
    let thread = |index: usize| {
        Ok(Thread {
            program: threads.program[index],
            pid: threads.pid[index],
            tid: threads.tid[index],
            name: texts.get(threads.name[index]).map_err(|error| error.of("thread", index))?,
            life_ns: threads.life_ns[index],
            outside_ns: threads.outside_ns[index],
            overhead_ns: threads.overhead_ns[index],
            ready_ns: threads.ready_ns[index].checked_sub(1),
            samples: threads.samples[index],
        })
    };
    (0..len).map(thread).collect()
}

/// `most` is the number of elements that a histogram may have.
fn rows(rows: &wire::Rows, most: usize) -> Result<Vec<FunctionTimes>, ReadError> {
    let len = rows.function.len();
    Columns { table: "rows", len }.check(&[
        ("counted", if rows.counted.is_empty() { len } else { rows.counted.len() }),
        ("thread", rows.thread.len()),
        ("calls", rows.calls.len()),
        ("primitive", rows.primitive.len()),
        ("open", rows.open.len()),
        ("self", rows.self_ns.len()),
        ("waiting", rows.waiting_ns.len()),
        ("self raw", rows.self_raw_ns.len()),
        ("inclusive", rows.inclusive_ns.len()),
        ("inclusive raw", rows.inclusive_raw_ns.len()),
        ("min", rows.min_ns.len()),
        ("max", rows.max_ns.len()),
        ("histogram length", rows.histogram_len.len()),
        ("samples", rows.samples.len()),
    ])?;
    let mut histograms = rows.histogram.as_slice();
    let row = |index: usize| {
        let wrong = |what| ReadError::Entry { table: "row", index, what };
        let len = rows.histogram_len[index] as usize;
        if len > most {
            return Err(Invalid::Histogram { index, len, most }.into());
        }
        let (histogram, others) =
            histograms.split_at_checked(len).ok_or_else(|| wrong("its histogram is not there"))?;
        histograms = others;
        Ok(FunctionTimes {
            function: rows.function[index],
            thread: rows.thread[index],
            calls: rows.calls[index],
            primitive: rows.primitive[index],
            open: rows.open[index],
            counted: rows.counted.get(index).copied().unwrap_or(0),
            self_ns: rows.self_ns[index],
            waiting_ns: rows.waiting_ns[index],
            self_raw_ns: rows.self_raw_ns[index],
            inclusive_ns: rows.inclusive_ns[index],
            inclusive_raw_ns: rows.inclusive_raw_ns[index],
            min_ns: rows.min_ns[index],
            max_ns: rows.max_ns[index],
            samples: rows.samples[index],
            histogram: histogram.to_vec(),
        })
    };
    (0..len).map(row).collect()
}

fn arcs(arcs: &wire::Arcs) -> Result<Vec<ArcTimes>, ReadError> {
    let len = arcs.callee.len();
    Columns { table: "arcs", len }.check(&[
        ("counted", if arcs.counted.is_empty() { len } else { arcs.counted.len() }),
        ("caller", arcs.caller.len()),
        ("thread", arcs.thread.len()),
        ("calls", arcs.calls.len()),
        ("open", arcs.open.len()),
        ("self", arcs.self_ns.len()),
        ("inclusive", arcs.inclusive_ns.len()),
        ("min", arcs.min_ns.len()),
        ("max", arcs.max_ns.len()),
    ])?;
    let arc = |index: usize| {
        Ok(ArcTimes {
            caller: caller("arc", index, arcs.caller[index])?,
            callee: arcs.callee[index],
            thread: arcs.thread[index],
            calls: arcs.calls[index],
            open: arcs.open[index],
            counted: arcs.counted.get(index).copied().unwrap_or(0),
            self_ns: arcs.self_ns[index],
            inclusive_ns: arcs.inclusive_ns[index],
            min_ns: arcs.min_ns[index],
            max_ns: arcs.max_ns[index],
        })
    };
    (0..len).map(arc).collect()
}

fn nodes(nodes: &wire::Nodes) -> Result<Vec<Node>, ReadError> {
    let len = nodes.function.len();
    Columns { table: "nodes", len }.check(&[
        ("parent", nodes.parent.len()),
        ("thread", nodes.thread.len()),
        ("calls", nodes.calls.len()),
        ("self", nodes.self_ns.len()),
        ("samples", nodes.samples.len()),
        ("waiting", nodes.waiting_ns.len()),
    ])?;
    let node = |index: usize| {
        Ok(Node {
            parent: parent("node", index, nodes.parent[index])?,
            function: function("node", index, nodes.function[index])?,
            thread: nodes.thread[index],
            calls: nodes.calls[index],
            self_ns: nodes.self_ns[index],
            waiting_ns: nodes.waiting_ns[index],
            samples: nodes.samples[index],
        })
    };
    (0..len).map(node).collect()
}

/// Returns the bytes of a hexadecimal text.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8]| match *pair {
        [high, low] => Some((digit(high)? << 4 | digit(low)?) as u8),
        _ => None,
    };
    text.as_bytes().chunks(2).map(byte).collect()
}

/// Returns a number of the model. There are no negative ones.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_ids() {
        assert_eq!(bytes("ab01Ff"), Some(vec![0xab, 1, 0xff]));
        assert_eq!(
            (bytes(""), bytes("abc"), bytes("zz"), bytes("\u{e4}\u{e4}")),
            (Some(vec![]), None, None, None)
        );
    }
}
