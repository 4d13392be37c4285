//! A [`Measured`] -> the bytes of a file.

use std::collections::HashMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use crate::model::{ClockSource, Measured, Node, REST, REST_NAME};
use crate::paths::{Frame, LEFT_OUT_NAME, Paths};
use crate::wire;

/// The name of the frame that stands for the callers of a function in which samples were taken, if call paths were recorded.
const NO_PATH_NAME: &str = "[path not known]";
/// The key of the label that names a sample's thread.
const THREAD_LABEL: &str = "thread";
/// The size from which encoded samples are passed on to be compressed.
const PIECE: usize = 1 << 18;

impl Measured {
    /// Returns the bytes of a file, compressed with gzip.
    ///
    /// Functions have the names of the symbol table, which `go tool pprof` demangles; see
    /// [`write_with_names`](Measured::write_with_names).
    ///
    /// A value for which [`Measured::check`] returns an error is written as well, but no reader accepts the file.
    pub fn write(&self) -> Vec<u8> {
        self.write_with_names(str::to_owned)
    }

    /// Returns the bytes of a file in which other readers than this crate find the names that `shown` makes of
    /// the names in the symbol table, such as demangled ones. [`Measured::read`] returns the names in the symbol
    /// table.
    pub fn write_with_names(&self, shown: impl Fn(&str) -> String) -> Vec<u8> {
        let mut strings = Strings::default();
        let profile = self.profile(&mut strings, shown);
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
    fn profile(&self, strings: &mut Strings, shown: impl Fn(&str) -> String) -> wire::Profile {
        let mut value_type =
            |name, unit| wire::ValueType { r#type: strings.index(name), unit: strings.index(unit) };
        let sample_type = vec![
            value_type("calls", "count"),
            value_type("time", "nanoseconds"),
            value_type("samples", "count"),
        ];
        let cpu = value_type("cpu", "nanoseconds");
        let default_sample_type = sample_type[1].r#type;
        let period_type = (self.sample_period_ns > 0).then_some(cpu);
        let mapping = self.mappings(strings);
        let mut function = Vec::with_capacity(self.functions.len() + 3);
        let mut location = Vec::with_capacity(self.functions.len() + 3);
        for ours in &self.functions {
            let id = function.len() as u64 + 1;
            function.push(wire::Function {
                id,
                name: strings.index(&shown(&ours.name)),
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
        // Functions that are none, for the paths.
        for name in [REST_NAME, LEFT_OUT_NAME, NO_PATH_NAME] {
            let (id, name) = (function.len() as u64 + 1, strings.index(name));
            function.push(wire::Function { id, name, system_name: name, ..wire::Function::default() });
            let line = vec![wire::Line { function_id: id, line: 0 }];
            location.push(wire::Location { id, line, ..wire::Location::default() });
        }
        strings.index(THREAD_LABEL);
        for thread in 0..self.threads.len() {
            strings.index(&self.thread_label(thread));
        }
        let extension = Some(self.extension(strings));
        wire::Profile {
            sample_type,
            mapping,
            location,
            function,
            string_table: strings.all.clone(),
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
            filename: strings.index(&module.name),
            build_id: strings.index(&hexadecimal(&module.build_id)),
            has_functions: true,
            has_filenames: has_lines,
            has_line_numbers: has_lines,
        });
        mapping.collect()
    }

    /// Returns the text of the label for the samples of a thread.
    fn thread_label(&self, thread: usize) -> String {
        self.threads.get(thread).map_or_else(String::new, |thread| format!("{} {}", thread.name, thread.tid))
    }

    /// Calls `write` with each sample: one for a node or an arc, and one for the CPU time of a function on a thread.
    fn samples(&self, strings: &Strings, write: &mut dyn FnMut(&wire::Samples)) {
        let key = strings.find(THREAD_LABEL);
        let labels: Vec<wire::Label> = (0..self.threads.len())
            .map(|thread| wire::Label { key, str: strings.find(&self.thread_label(thread)) })
            .collect();
        // One sample, of which the memory is used again.
        let mut message = wire::Samples { sample: vec![wire::Sample::default()] };
        let mut sample = |path: &mut dyn Iterator<Item = u64>, values: [u64; 3], thread: Option<u32>| {
            let sample = &mut message.sample[0];
            sample.location_id.clear();
            sample.location_id.extend(path);
            sample.value.clear();
            sample.value.extend(values.map(signed));
            sample.label.clear();
            sample.label.extend(thread.and_then(|thread| labels.get(thread as usize)));
            write(&message);
        };
        let id = |function: u32| u64::from(function) + 1;
        let rest = self.functions.len() as u64 + 1;
        let left_out = rest + 1;
        if self.nodes.is_empty() {
            for arc in &self.arcs {
                let mut path = [id(arc.callee)].into_iter().chain(arc.caller.map(id));
                sample(&mut path, [arc.calls, arc.self_ns, 0], Some(arc.thread));
            }
        }
        // The samples of CPU time that know no path are of the function alone, or below a frame that says so.
        let callers = (!self.nodes.is_empty()).then_some(left_out + 1);
        let mut left: Vec<u64> = self.functions.iter().map(|function| function.samples).collect();
        let mut in_paths: HashMap<(u32, u32), u64> = HashMap::new();
        for node in self.nodes.iter().filter(|node| node.samples > 0) {
            let sum = in_paths.entry((node.function, node.thread)).or_default();
            *sum = sum.saturating_add(node.samples);
        }
        let mut take = |function: u32, samples: u64| {
            if let Some(left) = left.get_mut(function as usize) {
                *left = left.saturating_sub(samples);
            }
        };
        for row in self.rows.iter().filter(|row| row.samples > 0) {
            take(row.function, row.samples);
            let known = in_paths.remove(&(row.function, row.thread)).unwrap_or(0);
            if row.samples > known {
                let mut path = [id(row.function)].into_iter().chain(callers);
                sample(&mut path, [0, 0, row.samples - known], Some(row.thread));
            }
        }
        in_paths.into_iter().for_each(|((function, _), samples)| take(function, samples));
        for (index, samples) in left.into_iter().enumerate().filter(|&(_, samples)| samples > 0) {
            sample(&mut [index as u64 + 1].into_iter().chain(callers), [0, 0, samples], None);
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
                Frame::Node(node) => match self.nodes[node as usize].function {
                    REST => rest,
                    function => id(function),
                },
            });
            sample(&mut ids, values, Some(node.thread));
        }
    }

    fn extension(&self, strings: &mut Strings) -> wire::Extension {
        let clock = &self.clock;
        wire::Extension {
            version: wire::VERSION,
            program: strings.index(&self.program),
            clock: Some(wire::Clock {
                source: match clock.source {
                    ClockSource::Tsc => 0,
                    ClockSource::ClockGettime => 1,
                },
                ticks_per_second: clock.ticks_per_second,
                inside_ns: clock.inside_ns,
                outside_ns: clock.outside_ns,
                error_ns: clock.error_ns,
            }),
            function_samples: self.functions.iter().map(|function| function.samples).collect(),
            threads: Some(self.wire_threads(strings)),
            rows: Some(self.wire_rows()),
            arcs: Some(self.wire_arcs()),
            nodes: Some(self.wire_nodes()),
            nodes_lost: self.nodes_lost,
            intervals: self.intervals.starts().to_vec(),
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
            samples: threads.iter().map(|thread| thread.samples).collect(),
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
            self_ns: rows.iter().map(|row| row.self_ns).collect(),
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
            caller: arcs.iter().map(|arc| arc.caller.map_or(0, |caller| u64::from(caller) + 1)).collect(),
            callee: arcs.iter().map(|arc| arc.callee).collect(),
            thread: arcs.iter().map(|arc| arc.thread).collect(),
            calls: arcs.iter().map(|arc| arc.calls).collect(),
            open: arcs.iter().map(|arc| arc.open).collect(),
            self_ns: arcs.iter().map(|arc| arc.self_ns).collect(),
            inclusive_ns: arcs.iter().map(|arc| arc.inclusive_ns).collect(),
            min_ns: arcs.iter().map(|arc| arc.min_ns).collect(),
            max_ns: arcs.iter().map(|arc| arc.max_ns).collect(),
        }
    }

    fn wire_nodes(&self) -> wire::Nodes {
        let nodes = &self.nodes;
        // A parent that does not come before its child becomes a distance that the reader refuses.
        let distance = |index: usize, parent: u32| (index as u64).checked_sub(u64::from(parent));
        let parent = |(index, node): (usize, &Node)| match node.parent {
            None => 0,
            Some(parent) => {
                distance(index, parent).filter(|&distance| distance > 0).unwrap_or(u64::from(u32::MAX))
            }
        };
        let function = |node: &Node| match node.function {
            REST => 0,
            function => u64::from(function) + 1,
        };
        wire::Nodes {
            parent: nodes.iter().enumerate().map(parent).collect(),
            function: nodes.iter().map(function).collect(),
            thread: nodes.iter().map(|node| node.thread).collect(),
            calls: nodes.iter().map(|node| node.calls).collect(),
            self_ns: nodes.iter().map(|node| node.self_ns).collect(),
            samples: nodes.iter().map(|node| node.samples).collect(),
        }
    }
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

/// The string table, of which the first element is empty.
struct Strings {
    all: Vec<String>,
    indexes: HashMap<String, i64>,
}

impl Default for Strings {
    fn default() -> Strings {
        Strings { all: vec![String::new()], indexes: HashMap::from([(String::new(), 0)]) }
    }
}

impl Strings {
    /// Returns the index of a text, which is added if it is not there.
    fn index(&mut self, text: &str) -> i64 {
        if let Some(&index) = self.indexes.get(text) {
            return index;
        }
        let index = self.all.len() as i64;
        self.all.push(text.to_owned());
        self.indexes.insert(text.to_owned(), index);
        index
    }

    /// Returns the index of a text that has been added.
    fn find(&self, text: &str) -> i64 {
        self.indexes.get(text).copied().unwrap_or(0)
    }
}
