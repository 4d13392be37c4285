//! pprof's `profile.proto` (<https://github.com/google/pprof/blob/main/proto/profile.proto>), compressed with gzip.
//!
//! Locations are link addresses, with a line for each inlined function. The values of a sample are calls, then samples if
//! there are any, executed instructions if these were counted, and time. The last one is the default, because readers that do not look at
//! `default_sample_type`, speedscope among them, show that.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use gmon_run::{Strings, wire};
use prost::Message;

use crate::model::{Function, Line, Run, Time};
use crate::stacks::{Place, Weight, levels, visit};

/// The size from which encoded samples are passed on to be compressed.
const PIECE: usize = 1 << 18;

pub(crate) fn write(run: &Run, out: &mut dyn Write) -> io::Result<()> {
    let mut file = GzEncoder::new(out, Compression::default());
    let mut tables = Tables::new(run);
    let has_time = run.time.is_some();
    // Both are of the same name.
    let has_blocks = run.has_instructions && run.time != Time::Executed;
    let has_samples = run.sample_period_ns > 0;
    let key = tables.string("thread");
    let labels: Vec<wire::Label> = run
        .threads
        .iter()
        .map(|thread| wire::Label { key, str: tables.string(&format!("{} {}", thread.name, thread.tid)) })
        .collect();
    let mut piece = Vec::new();
    // Readers accept the fields of a message in any order, so the samples come first.
    visit(run, |stack| {
        let location_id = stack.places.iter().map(|&place| tables.location(place)).collect();
        let mut value = vec![signed(stack.calls)];
        if has_samples {
            value.push(signed(stack.samples));
        }
        if has_blocks {
            value.push(signed(stack.instructions));
        }
        if has_time {
            value.push(signed(stack.self_ns));
        }
        let label = stack.thread.and_then(|thread| labels.get(thread as usize)).copied();
        let sample = wire::Sample { location_id, value, label: label.into_iter().collect() };
        wire::Samples { sample: vec![sample] }.encode(&mut piece).map_err(io::Error::other)?;
        if piece.len() >= PIECE {
            file.write_all(&piece)?;
            piece.clear();
        }
        Ok(())
    })?;
    file.write_all(&piece)?;

    let mut value_type =
        |name, unit| wire::ValueType { r#type: tables.string(name), unit: tables.string(unit) };
    let mut sample_type = vec![value_type("calls", "count")];
    let mut default = sample_type[0].r#type;
    if has_samples {
        sample_type.push(value_type("samples", "count"));
    }
    if has_blocks {
        sample_type.push(value_type("instructions", "count"));
    }
    if has_time {
        let (name, unit) = match run.time {
            Time::Executed => ("instructions", "count"),
            _ => ("time", "nanoseconds"),
        };
        sample_type.push(value_type(name, unit));
    }
    match Weight::of(run) {
        Weight::Time => default = tables.string("time"),
        Weight::Executed | Weight::Instructions => default = tables.string("instructions"),
        Weight::Calls => {}
    }
    let period_type = has_samples
        .then(|| wire::ValueType { r#type: tables.string("cpu"), unit: tables.string("nanoseconds") });
    let mapping = tables.mappings();
    let profile = wire::Profile {
        sample_type,
        mapping,
        location: tables.locations,
        function: tables.functions,
        string_table: tables.strings.take(),
        time_nanos: signed(run.start_unix_ns),
        duration_nanos: signed(run.duration_ns),
        period_type,
        period: signed(run.sample_period_ns),
        default_sample_type: default,
        extension: None,
    };
    file.write_all(&profile.encode_to_vec())?;
    file.finish()?;
    Ok(())
}

/// The mapping and the address of a location, with the function and the number of each line.
type Position = (u64, u64, Vec<(u64, i64)>);

/// The tables to which samples refer.
struct Tables<'r> {
    run: &'r Run,
    strings: Strings,
    functions: Vec<wire::Function>,
    /// The id of each inlined function in each file, and of what is no function.
    others: HashMap<(String, Option<u32>), u64>,
    locations: Vec<wire::Location>,
    location_index: HashMap<Place, u64>,
    /// The id of each address with its lines: many arcs and spots are at the same.
    known: HashMap<Position, u64>,
}

impl<'r> Tables<'r> {
    fn new(run: &'r Run) -> Tables<'r> {
        let mut tables = Tables {
            run,
            strings: Strings::default(),
            functions: Vec::new(),
            others: HashMap::new(),
            locations: Vec::new(),
            location_index: HashMap::new(),
            known: HashMap::new(),
        };
        for function in &run.functions {
            let id = tables.functions.len() as u64 + 1;
            let file = function.source.map_or("", |line| run.file_of(line));
            let function = wire::Function {
                id,
                name: tables.string(&function.demangled),
                system_name: tables.string(&function.name),
                filename: tables.string(file),
                start_line: line_number(function.source),
            };
            tables.functions.push(function);
        }
        tables
    }

    fn string(&mut self, text: &str) -> i64 {
        // pprof prints names as they are.
        self.strings.index(&gmon::visible(text))
    }

    fn location(&mut self, place: Place) -> u64 {
        if let Some(&id) = self.location_index.get(&place) {
            return id;
        }
        let run = self.run;
        let (mut line, mut mapping_id, mut address) = (Vec::new(), 0, 0);
        for level in levels(run, place) {
            let function_id = match (level.inlined, level.function) {
                (None, Some(function)) => u64::from(function) + 1,
                (inlined, _) => self.other(level.name, inlined, level.line),
            };
            if let Some(function) = level.function.map(|index| &run.functions[index as usize]) {
                mapping_id = function.module.map_or(0, |module| u64::from(module) + 1);
                address = self.address(place, function);
            }
            line.push(wire::Line { function_id, line: line_number(level.line) });
        }
        let key: Vec<_> = line.iter().map(|line| (line.function_id, line.line)).collect();
        let id = match self.known.get(&(mapping_id, address, key.clone())) {
            Some(&id) => id,
            None => {
                let id = self.locations.len() as u64 + 1;
                self.locations.push(wire::Location { id, mapping_id, address, line });
                self.known.insert((mapping_id, address, key), id);
                id
            }
        };
        self.location_index.insert(place, id);
        id
    }

    fn address(&self, place: Place, function: &Function) -> u64 {
        match place {
            Place::Spot(spot) => self.run.spots[spot as usize].address,
            Place::Site(arc) => self.run.arcs[arc as usize].site.unwrap_or(function.address),
            Place::Function(_) | Place::Rest | Place::LeftOut => function.address,
        }
    }

    /// Returns the id of an inlined function, whose file is that of the line, or of what is no function.
    fn other(&mut self, name: &str, inlined: Option<u32>, line: Option<Line>) -> u64 {
        let file = line.map_or("", |line| self.run.file_of(line));
        let key = (format!("{name}\0{file}"), inlined);
        if let Some(&id) = self.others.get(&key) {
            return id;
        }
        let id = self.functions.len() as u64 + 1;
        let system = inlined.map_or(name, |inlined| &self.run.inlined[inlined as usize].name);
        let function = wire::Function {
            id,
            name: self.string(name),
            system_name: self.string(system),
            filename: self.string(file),
            start_line: 0,
        };
        self.functions.push(function);
        self.others.insert(key, id);
        id
    }

    fn mappings(&mut self) -> Vec<wire::Mapping> {
        let run = self.run;
        // pprof looks for names and lines in the file of a mapping that has neither.
        let mut has_lines = vec![false; run.modules.len()];
        for function in run.functions.iter().filter(|function| function.source.is_some()) {
            if let Some(has_lines) = function.module.and_then(|module| has_lines.get_mut(module as usize)) {
                *has_lines = true;
            }
        }
        let mut mappings = Vec::new();
        for (module, has_lines) in run.modules.iter().zip(has_lines) {
            let build_id: String = module.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
            mappings.push(wire::Mapping {
                id: mappings.len() as u64 + 1,
                memory_start: module.start,
                memory_limit: module.limit,
                file_offset: module.offset,
                filename: self.string(&module.path),
                build_id: self.string(&build_id),
                has_functions: true,
                has_filenames: has_lines,
                has_line_numbers: has_lines,
            });
        }
        mappings
    }
}

fn line_number(line: Option<Line>) -> i64 {
    line.map_or(0, |line| i64::from(line.line))
}

/// pprof's numbers are signed.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
