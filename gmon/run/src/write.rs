//! A [`Recording`] -> the bytes of a file.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use crate::columns::{distance_to, successor};
use crate::lines_tables;
use crate::model::{ClockSource, Ending, NO_PATH_NAME, Process, REST_NAME, Recording, Thread};
use crate::paths::{Frame, LEFT_OUT_NAME, Paths};
use crate::slow_tables;
use crate::strings::Strings;
use crate::values_tables;
use crate::wire;

/// The name of the frame that stands for code in no known file.
const ELSEWHERE_NAME: &str = "[elsewhere]";
/// The key of the label that names a sample's thread.
const THREAD_LABEL: &str = "thread";
/// Those of the labels that name its program, and the number of its process if it is known.
const PROGRAM_LABEL: &str = "program";
/// That of what the program's processes were labelled with.
const OWN_LABEL: &str = "label";
const PID_LABEL: &str = "pid";
/// The size from which encoded samples are passed on to be compressed.
const PIECE: usize = 1 << 18;

impl Recording {
    /// Returns the bytes of a file, compressed with gzip.
    ///
    /// Other readers than this crate find the demangled names of functions: not all of them demangle names, and those that do may need
    /// any amount of memory for a long one. [`Recording::read`] returns the names in the symbol table.
    ///
    /// A value for which [`Recording::check`] returns an error is written as well, but no reader accepts the file.
    pub fn write(&self) -> Vec<u8> {
        let mut strings = Strings::default();
        let profile = self.profile(&mut strings);
        // Level 1: a file of a million paths takes less than half of the time that it takes at level 6, and is a
        // tenth larger.
        let mut file = GzEncoder::new(Vec::new(), Compression::fast());
        let mut piece = profile.encode_to_vec();
        drop(profile);
        self.samples(&strings, &mut |samples| {
            if samples.encode(&mut piece).is_ok() && piece.len() >= PIECE {
                pass_on(&mut file, &mut piece);
            }
        });
        pass_on(&mut file, &mut piece);
        // Writing to memory does not fail.
        file.finish().unwrap_or_default()
    }

    /// Returns everything except the samples.
    fn profile(&self, strings: &mut Strings) -> wire::Profile {
        let mut value_type =
            |name, unit| wire::ValueType { r#type: strings.index(name), unit: strings.index(unit) };
        let mut sample_type = vec![value_type("calls", "count")];
        let cpu = value_type("cpu", "nanoseconds");
        if self.sample_period_ns > 0 {
            sample_type.extend([value_type("samples", "count"), cpu]);
        }
        if self.is_measured() {
            sample_type.push(match self.clock.source {
                ClockSource::Instructions => value_type("instructions", "count"),
                ClockSource::Tsc | ClockSource::ClockGettime => value_type("time", "nanoseconds"),
            });
        }
        // Readers that do not look at the default, speedscope among them, show the last one.
        let default_sample_type = sample_type.last().map_or(0, |last| last.r#type);
        let period_type = (self.sample_period_ns > 0).then_some(cpu);
        let mapping = self.mappings(strings);
        let mut function = Vec::with_capacity(self.functions.len() + 4);
        let mut location = Vec::with_capacity(self.functions.len() + 4);
        for (ours, shown) in self.functions.iter().zip(self.shown_names()) {
            let id = function.len() as u64 + 1;
            let name = shown.unwrap_or_else(|| self.shown_name(ours));
            function.push(wire::Function {
                id,
                name: strings.index(&name),
                system_name: strings.index(&ours.name),
                filename: strings.index(&ours.file),
                start_line: i64::from(ours.line),
            });
            location.push(wire::Location {
                id,
                mapping_id: u64::from(ours.module) + 1,
                address: ours.address,
                line: vec![wire::Line { function_id: id, line: i64::from(ours.line) }],
            });
        }
        // Functions that are none, for the paths and for code in no known file.
        for name in [REST_NAME, LEFT_OUT_NAME, NO_PATH_NAME, ELSEWHERE_NAME] {
            let (id, name) = (function.len() as u64 + 1, strings.index(name));
            function.push(wire::Function { id, name, system_name: name, ..wire::Function::default() });
            let line = vec![wire::Line { function_id: id, line: 0 }];
            location.push(wire::Location { id, line, ..wire::Location::default() });
        }
        strings.index(PROGRAM_LABEL);
        strings.index(PID_LABEL);
        strings.index(THREAD_LABEL);
        if self.has_labels() {
            strings.index(OWN_LABEL);
        }
        for program in &self.programs {
            strings.index(&program.name);
            strings.index(&program.label);
            strings.index(&program.pid.to_string());
        }
        for thread in &self.threads {
            strings.index(&thread_label(thread));
            strings.index(&thread.pid.to_string());
        }
        let extension = Some(self.extension(strings));
        wire::Profile {
            sample_type,
            mapping,
            location,
            function,
            string_table: strings.take(),
            time_nanos: signed(self.start_unix_ns),
            duration_nanos: signed(self.duration_ns),
            period_type,
            period: signed(self.sample_period_ns),
            default_sample_type,
            extension,
        }
    }

    fn mappings(&self, strings: &mut Strings) -> Vec<wire::Mapping> {
        // pprof looks for names and lines in the file of a mapping that has neither.
        let mut has_lines = vec![false; self.modules.len()];
        for function in self.functions.iter().filter(|function| !function.file.is_empty()) {
            if let Some(has_lines) = has_lines.get_mut(function.module as usize) {
                *has_lines = true;
            }
        }
        let modules = self.modules.iter().zip(has_lines).enumerate();
        let mapping = modules.map(|(index, (module, has_lines))| wire::Mapping {
            id: index as u64 + 1,
            memory_start: module.start,
            memory_limit: module.limit,
            file_offset: module.offset,
            filename: strings.index(&module.path),
            build_id: strings.index(&hexadecimal(&module.build_id)),
            has_functions: true,
            has_filenames: has_lines,
            has_line_numbers: has_lines,
        });
        mapping.collect()
    }

    /// Returns the labels of samples: those of each program, and those of each thread.
    fn labels(&self, strings: &Strings) -> [Vec<Vec<wire::Label>>; 2] {
        let [program, pid, thread] = [PROGRAM_LABEL, PID_LABEL, THREAD_LABEL].map(|key| strings.find(key));
        let of_program = |index: u32, number: u32| {
            let known = self.programs.get(index as usize);
            let name = known.map_or("", |program| &program.name);
            let own = known.map_or("", |program| &program.label);
            let own = (!own.is_empty())
                .then(|| wire::Label { key: strings.find(OWN_LABEL), str: strings.find(own) });
            let number =
                (number > 0).then(|| wire::Label { key: pid, str: strings.find(&number.to_string()) });
            [wire::Label { key: program, str: strings.find(name) }].into_iter().chain(own).chain(number)
        };
        let programs = (0..).zip(&self.programs).map(|(index, known)| of_program(index, known.pid).collect());
        let threads = self.threads.iter().map(|known| {
            let own = wire::Label { key: thread, str: strings.find(&thread_label(known)) };
            of_program(known.program, known.pid).chain([own]).collect()
        });
        [programs.collect(), threads.collect()]
    }

    /// Calls `write` with each sample: one for a node or for the calls of one function by another, and one for the CPU time of a
    /// function or of a sampled stack.
    fn samples(&self, strings: &Strings, write: &mut dyn FnMut(&wire::Samples)) {
        let [programs, threads] = self.labels(strings);
        let of_program = |program: u32| programs.get(program as usize).map_or(&[][..], Vec::as_slice);
        let of_thread = |thread: u32| threads.get(thread as usize).map_or(&[][..], Vec::as_slice);
        let (is_measured, period) = (self.is_measured(), self.sample_period_ns);
        // One sample, of which the memory is used again.
        let mut message = wire::Samples { sample: vec![wire::Sample::default()] };
        let mut sample = |path: &mut dyn Iterator<Item = u64>, values: [u64; 3], labels: &[wire::Label]| {
            let [calls, time, samples] = values;
            let sample = &mut message.sample[0];
            sample.location_id.clear();
            sample.location_id.extend(path);
            sample.value.clear();
            sample.value.push(signed(calls));
            if period > 0 {
                sample.value.extend([samples, samples.saturating_mul(period)].map(signed));
            }
            if is_measured {
                sample.value.push(signed(time));
            }
            sample.label.clear();
            sample.label.extend_from_slice(labels);
            write(&message);
        };
        let id = |function: u32| u64::from(function) + 1;
        let rest = self.functions.len() as u64 + 1;
        let left_out = rest + 1;
        // Call sites are in the extension.
        let mut pairs: Vec<_> =
            self.unmeasured_calls().map(|c| (c.program, c.caller, c.callee, c.calls)).collect();
        pairs.sort_unstable();
        for pair in pairs.chunk_by(|a, b| (a.0, a.1, a.2) == (b.0, b.1, b.2)) {
            let (program, caller, callee, _) = pair[0];
            let calls = pair.iter().fold(0_u64, |sum, pair| sum.saturating_add(pair.3));
            let mut path = [id(callee)].into_iter().chain(caller.map(id));
            sample(&mut path, [calls, 0, 0], of_program(program));
        }
        if is_measured && self.nodes.is_empty() {
            for arc in &self.arcs {
                let mut path = [id(arc.callee)].into_iter().chain(arc.caller.map(id));
                sample(&mut path, [arc.calls, arc.self_ns, 0], of_thread(arc.thread));
            }
        }
        // The samples of CPU time that know no path are of the function alone, or below a frame that says so.
        let no_path = left_out + 1;
        let callers = (!self.nodes.is_empty()).then_some(no_path);
        let (mut left, stacks) = match self.has_sampled_stacks() {
            true => (BTreeMap::new(), self.whole_stacks()),
            false => (self.samples_by_function(), Vec::new()),
        };
        let mut in_paths: HashMap<(Option<u32>, u32), u64> = HashMap::new();
        for node in self.nodes.iter().filter(|node| node.samples > 0) {
            let sum = in_paths.entry((node.function, node.thread)).or_default();
            *sum = sum.saturating_add(node.samples);
        }
        let program_of = |thread: u32| self.threads.get(thread as usize).map_or(0, |thread| thread.program);
        let mut take = |function: Option<u32>, thread: u32, samples: u64| {
            if let Some(left) = function.and_then(|function| left.get_mut(&(program_of(thread), function))) {
                *left = left.saturating_sub(samples);
            }
        };
        for row in self.rows.iter().filter(|row| row.samples > 0) {
            take(Some(row.function), row.thread, row.samples);
            let known = in_paths.remove(&(Some(row.function), row.thread)).unwrap_or(0);
            if row.samples > known {
                let mut path = [id(row.function)].into_iter().chain(callers);
                sample(&mut path, [0, 0, row.samples - known], of_thread(row.thread));
            }
        }
        in_paths.into_iter().for_each(|((function, thread), samples)| take(function, thread, samples));
        for ((program, function), samples) in left.into_iter().filter(|&(_, samples)| samples > 0) {
            sample(&mut [id(function)].into_iter().chain(callers), [0, 0, samples], of_program(program));
        }
        // Where times were measured, samples say how much CPU time functions had, and these are of none.
        for (index, program) in (0..).zip(&self.programs).filter(|(_, program)| program.elsewhere > 0) {
            if !is_measured {
                sample(&mut [no_path + 1].into_iter(), [0, 0, program.elsewhere], of_program(index));
            }
        }
        let paths = Paths::new(self.nodes.iter().map(|node| node.parent));
        let mut path = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let values = [node.calls, node.self_ns, node.samples];
            if values == [0; 3] {
                continue;
            }
            path.clear();
            paths.append(index, &mut path);
            let mut ids = path.iter().map(|frame| match *frame {
                Frame::LeftOut => left_out,
                Frame::Node(node) => self.nodes[node as usize].function.map_or(rest, id),
            });
            sample(&mut ids, values, of_thread(node.thread));
        }
        let paths = Paths::new(stacks.iter().map(|stack| stack.parent));
        for (index, stack) in stacks.iter().enumerate().filter(|(_, stack)| stack.samples > 0) {
            path.clear();
            paths.append(index, &mut path);
            let mut ids = path.iter().map(|frame| match *frame {
                Frame::LeftOut => left_out,
                Frame::Node(node) => stacks[node as usize].function.map_or(no_path, id),
            });
            sample(&mut ids, [0, 0, stack.samples], of_program(stack.program));
        }
    }

    fn extension(&self, strings: &mut Strings) -> wire::Extension {
        let clock = &self.clock;
        let (typical_calls, slow_calls, slow_nodes) =
            slow_tables::written(&self.slow, |text| strings.index(text));
        wire::Extension {
            version: wire::VERSION,
            runs: Some(self.wire_runs(strings)),
            programs: Some(self.wire_programs(strings)),
            processes: Some(self.wire_processes()),
            processes_left_out: self.processes_left_out,
            clock: Some(wire::Clock {
                source: match clock.source {
                    ClockSource::Tsc => 0,
                    ClockSource::ClockGettime => 1,
                    ClockSource::Instructions => 2,
                },
                ticks_per_second: clock.ticks_per_second,
                inside_ns: clock.inside_ns,
                outside_ns: clock.outside_ns,
                error_ns: clock.error_ns,
                counted_below_ns: clock.counted_below_ns,
            }),
            function_sizes: self.functions.iter().map(|function| function.size).collect(),
            threads: Some(self.wire_threads(strings)),
            rows: Some(self.wire_rows()),
            arcs: Some(self.wire_arcs()),
            nodes: Some(self.wire_nodes()),
            nodes_lost: self.nodes_lost,
            intervals: self.intervals.starts().to_vec(),
            calls: Some(self.wire_calls()),
            hits: Some(self.wire_hits()),
            stacks: Some(self.wire_stacks()),
            lines: (!self.lines.is_empty()).then(|| lines_tables::written(&self.lines)),
            blocks: Some(self.wire_blocks()),
            digests: self.modules.iter().map(|module| module.digest).collect(),
            typical_calls: Some(typical_calls),
            slow_calls: Some(slow_calls),
            slow_nodes: Some(slow_nodes),
            values: (!self.values.is_empty())
                .then(|| values_tables::written(&self.values, |text| strings.index(text))),
        }
    }

    fn wire_runs(&self, strings: &mut Strings) -> wire::Runs {
        let runs = &self.runs;
        wire::Runs {
            id: runs.iter().map(|run| run.id).collect(),
            host: runs.iter().map(|run| strings.index(&run.host)).collect(),
            rank: runs.iter().map(|run| run.rank.map_or(0, |rank| u64::from(rank) + 1)).collect(),
            start_unix_ns: runs.iter().map(|run| run.start_unix_ns).collect(),
            duration_ns: runs.iter().map(|run| run.duration_ns).collect(),
        }
    }

    fn wire_programs(&self, strings: &mut Strings) -> wire::Programs {
        let programs = &self.programs;
        wire::Programs {
            name: programs.iter().map(|program| strings.index(&program.name)).collect(),
            module: programs.iter().map(|program| program.module).collect(),
            processes: programs.iter().map(|program| program.processes).collect(),
            pid: programs.iter().map(|program| program.pid).collect(),
            elsewhere: programs.iter().map(|program| program.elsewhere).collect(),
            overhead: programs.iter().map(|program| program.overhead).collect(),
            label: match self.has_labels() {
                true => programs.iter().map(|program| strings.index(&program.label)).collect(),
                false => Vec::new(),
            },
        }
    }

    fn wire_processes(&self) -> wire::Processes {
        let all = &self.processes;
        let none = Process::default();
        let before = || [&none].into_iter().chain(all);
        let distance = |of: fn(&Process) -> u32| {
            all.iter()
                .zip(before())
                .map(move |(process, before)| i64::from(of(process)) - i64::from(of(before)))
        };
        let begin = all.iter().zip(before());
        let begin = begin.map(|(process, before)| process.begin_us.wrapping_sub(before.begin_us) as i64);
        let run = |process: &Process| {
            let index = self.runs.binary_search_by_key(&process.run, |run| run.id).ok();
            index.map_or(0, |index| index as u32 + 1)
        };
        let ending = |ending| match ending {
            Ending::Unknown => 0,
            Ending::Exited(status) => wire::EXITED + u32::from(status),
            Ending::Killed(signal) => wire::KILLED + u32::from(signal),
        };
        wire::Processes {
            program: all.iter().map(|process| process.program).collect(),
            pid: distance(|process| process.pid).collect(),
            parent: distance(|process| process.parent).collect(),
            run: all.iter().map(run).collect(),
            begin_us: begin.collect(),
            life_us: all.iter().map(|process| process.end_us.saturating_sub(process.begin_us)).collect(),
            ending: all.iter().map(|process| ending(process.ending)).collect(),
            calls: all.iter().map(|process| process.calls).collect(),
            samples: all.iter().map(|process| process.samples).collect(),
            self_ns: all.iter().map(|process| process.self_ns).collect(),
        }
    }

    /// Returns the distance from the address of a function to another address.
    fn distance(&self, function: Option<u32>, address: u64) -> i64 {
        let function = function.and_then(|function| self.functions.get(function as usize));
        address.wrapping_sub(function.map_or(0, |function| function.address)) as i64
    }

    fn wire_calls(&self) -> wire::Calls {
        let all = &self.calls;
        wire::Calls {
            program: all.iter().map(|calls| calls.program).collect(),
            caller: all.iter().map(|calls| successor(calls.caller)).collect(),
            site: all.iter().map(|calls| self.distance(calls.caller, calls.site)).collect(),
            callee: all.iter().map(|calls| calls.callee).collect(),
            calls: all.iter().map(|calls| calls.calls).collect(),
        }
    }

    fn wire_hits(&self) -> wire::Hits {
        let all = &self.hits;
        wire::Hits {
            program: all.iter().map(|hits| hits.program).collect(),
            function: all.iter().map(|hits| hits.function).collect(),
            address: all.iter().map(|hits| self.distance(Some(hits.function), hits.address)).collect(),
            samples: all.iter().map(|hits| hits.samples).collect(),
        }
    }

    fn wire_stacks(&self) -> wire::Stacks {
        let all = &self.stacks;
        wire::Stacks {
            program: all.iter().map(|stack| stack.program).collect(),
            parent: all.iter().enumerate().map(|(at, stack)| distance_to(at, stack.parent)).collect(),
            function: all.iter().map(|stack| successor(stack.function)).collect(),
            samples: all.iter().map(|stack| stack.samples).collect(),
        }
    }

    fn wire_blocks(&self) -> wire::Blocks {
        let all = &self.blocks;
        let mut before = 0_u64;
        let mut distance =
            |address: u64| address.wrapping_sub(std::mem::replace(&mut before, address)) as i64;
        wire::Blocks {
            program: all.iter().map(|block| block.program).collect(),
            module: all.iter().map(|block| block.module).collect(),
            address: all.iter().map(|block| distance(block.address)).collect(),
            executions: all.iter().map(|block| block.executions).collect(),
        }
    }

    fn wire_threads(&self, strings: &mut Strings) -> wire::Threads {
        let threads = &self.threads;
        wire::Threads {
            pid: threads.iter().map(|thread| thread.pid).collect(),
            tid: threads.iter().map(|thread| thread.tid).collect(),
            name: threads.iter().map(|thread| strings.index(&thread.name)).collect(),
            life_ns: threads.iter().map(|thread| thread.life_ns).collect(),
            outside_ns: threads.iter().map(|thread| thread.outside_ns).collect(),
            overhead_ns: threads.iter().map(|thread| thread.overhead_ns).collect(),
            ready_ns: threads
                .iter()
                .map(|thread| thread.ready_ns.map_or(0, |ready| ready.saturating_add(1)))
                .collect(),
            samples: threads.iter().map(|thread| thread.samples).collect(),
            program: threads.iter().map(|thread| thread.program).collect(),
        }
    }

    fn wire_rows(&self) -> wire::Rows {
        let rows = &self.rows;
        wire::Rows {
            function: rows.iter().map(|row| row.function).collect(),
            thread: rows.iter().map(|row| row.thread).collect(),
            calls: rows.iter().map(|row| row.calls).collect(),
            primitive: rows.iter().map(|row| row.primitive).collect(),
            open: rows.iter().map(|row| row.open).collect(),
            counted: unless_zeros(rows.iter().map(|row| row.counted)),
            self_ns: rows.iter().map(|row| row.self_ns).collect(),
            waiting_ns: rows.iter().map(|row| row.waiting_ns).collect(),
            self_raw_ns: rows.iter().map(|row| row.self_raw_ns).collect(),
            inclusive_ns: rows.iter().map(|row| row.inclusive_ns).collect(),
            inclusive_raw_ns: rows.iter().map(|row| row.inclusive_raw_ns).collect(),
            min_ns: rows.iter().map(|row| row.min_ns).collect(),
            max_ns: rows.iter().map(|row| row.max_ns).collect(),
            histogram_len: rows.iter().map(|row| row.histogram.len() as u32).collect(),
            histogram: rows.iter().flat_map(|row| row.histogram.iter().copied()).collect(),
            samples: rows.iter().map(|row| row.samples).collect(),
        }
    }

    fn wire_arcs(&self) -> wire::Arcs {
        let arcs = &self.arcs;
        wire::Arcs {
            caller: arcs.iter().map(|arc| successor(arc.caller)).collect(),
            callee: arcs.iter().map(|arc| arc.callee).collect(),
            thread: arcs.iter().map(|arc| arc.thread).collect(),
            calls: arcs.iter().map(|arc| arc.calls).collect(),
            open: arcs.iter().map(|arc| arc.open).collect(),
            counted: unless_zeros(arcs.iter().map(|arc| arc.counted)),
            self_ns: arcs.iter().map(|arc| arc.self_ns).collect(),
            inclusive_ns: arcs.iter().map(|arc| arc.inclusive_ns).collect(),
            min_ns: arcs.iter().map(|arc| arc.min_ns).collect(),
            max_ns: arcs.iter().map(|arc| arc.max_ns).collect(),
        }
    }

    fn wire_nodes(&self) -> wire::Nodes {
        let nodes = &self.nodes;
        wire::Nodes {
            parent: nodes.iter().enumerate().map(|(at, node)| distance_to(at, node.parent)).collect(),
            function: nodes.iter().map(|node| successor(node.function)).collect(),
            thread: nodes.iter().map(|node| node.thread).collect(),
            calls: nodes.iter().map(|node| node.calls).collect(),
            self_ns: nodes.iter().map(|node| node.self_ns).collect(),
            samples: nodes.iter().map(|node| node.samples).collect(),
            waiting_ns: nodes.iter().map(|node| node.waiting_ns).collect(),
        }
    }
}

/// Returns a column that is empty if all of its values are 0.
fn unless_zeros(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let values: Vec<u64> = values.collect();
    if values.iter().all(|&value| value == 0) { Vec::new() } else { values }
}

/// Returns the text of the label for the samples of a thread.
fn thread_label(thread: &Thread) -> String {
    format!("{} {}", thread.name, thread.tid)
}

fn pass_on(file: &mut GzEncoder<Vec<u8>>, piece: &mut Vec<u8>) {
    // Writing to memory does not fail.
    let _ = file.write_all(piece);
    piece.clear();
}

/// Returns a number as pprof's format has it.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
