//! The Firefox Profiler's processed profile format (`docs-developer/processed-profile-format.md` in its sources), version 55, which
//! newer ones convert.
//!
//! There is a sample for each stack. Its weight is its time in milliseconds, with all digits, and the samples follow each other on
//! the time line, which is not the one of the run. The crate fxprof-processed-profile writes the same format, but knows no
//! source lines, no inlined functions and whole weights only.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Value, json};

use crate::model::Run;
use crate::stacks::{Level, Place, Stack, Weight, levels, visit};
use gmon_run::Module;

/// The version of the format.
const VERSION: u32 = 55;
/// The type of a resource that is a library.
const LIBRARY: u32 = 1;
/// Nanoseconds of a millisecond.
const MS: f64 = 1e6;

pub(crate) fn write(run: &Run, out: &mut dyn Write) -> io::Result<()> {
    let weight = Weight::of(run);
    let mut threads: BTreeMap<Option<u32>, Thread> = BTreeMap::new();
    visit(run, |stack| {
        if weight.get(stack) > 0 {
            threads.entry(stack.thread).or_insert_with(|| Thread::new(run)).add(stack, weight);
        }
        Ok(())
    })?;
    let mut threads: Vec<_> = threads.into_iter().collect();
    threads.sort_by(|(_, a), (_, b)| b.at.total_cmp(&a.at));
    let written: Vec<Value> = (0..)
        .zip(&threads)
        .map(|(number, (index, thread))| thread.json(run, *index, number, weight))
        .collect();
    let profile = json!({
        "meta": {
            "categories": [{"name": "Other", "color": "grey", "subcategories": ["Other"]}],
            "debug": false,
            "extensions": {"length": 0, "baseURL": [], "id": [], "name": []},
            "interval": if run.sample_period_ns > 0 { run.sample_period_ns as f64 / MS } else { 1.0 },
            "preprocessedProfileVersion": VERSION,
            "processType": 0,
            "product": run.program,
            "importedFrom": concat!("gprofinject ", env!("CARGO_PKG_VERSION")),
            "sampleUnits": {"time": "ms", "eventDelay": "ms", "threadCPUDelta": "\u{b5}s"},
            "startTime": run.start_unix_ns as f64 / MS,
            "symbolicated": true,
            "pausedRanges": [],
            "version": 24,
            "usesOnlyOneStackType": true,
            "sourceCodeIsNotOnSearchfox": true,
            "markerSchema": [],
        },
        "libs": run.modules.iter().map(library).collect::<Vec<_>>(),
        "threads": written,
        "pages": [],
        "profilerOverhead": [],
        "counters": [],
    });
    Ok(serde_json::to_writer(gmon::EscapedJson(out), &profile)?)
}

/// Returns a library of the profile.
fn library(module: &Module) -> Value {
    let code_id: String = module.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "name": module.name(),
        "path": module.path,
        "debugName": module.name(),
        "debugPath": module.path,
        "breakpadId": breakpad_id(&module.build_id),
        "codeId": if code_id.is_empty() { Value::Null } else { json!(code_id) },
        "arch": null,
    })
}

/// Returns Breakpad's form of a build-id: the first 16 bytes as a GUID of little-endian numbers, and an age of 0.
fn breakpad_id(build_id: &[u8]) -> String {
    let mut guid = [0_u8; 16];
    guid.iter_mut().zip(build_id).for_each(|(to, &from)| *to = from);
    guid[..4].reverse();
    guid[4..6].reverse();
    guid[6..8].reverse();
    let digits: String = guid.iter().map(|byte| format!("{byte:02X}")).collect();
    format!("{digits}0")
}

/// The columns of a thread's tables.
struct Thread<'r> {
    run: &'r Run,
    strings: Vec<&'r str>,
    string_index: HashMap<&'r str, usize>,
    functions: FuncTable,
    function_index: HashMap<(Option<u32>, Option<u32>, &'r str), usize>,
    frames: FrameTable,
    frame_index: HashMap<Place, Vec<usize>>,
    stacks: StackTable,
    stack_index: HashMap<(Option<usize>, usize), usize>,
    resources: ResourceTable,
    resource_index: HashMap<u32, i64>,
    natives: NativeSymbols,
    native_index: HashMap<u32, usize>,
    samples: Samples,
    /// The time at which the next sample begins.
    at: f64,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct FuncTable {
    length: usize,
    name: Vec<usize>,
    #[serde(rename = "isJS")]
    is_js: Vec<bool>,
    #[serde(rename = "relevantForJS")]
    relevant_for_js: Vec<bool>,
    resource: Vec<i64>,
    file_name: Vec<Option<usize>>,
    line_number: Vec<Option<u32>>,
    column_number: Vec<Option<u32>>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct FrameTable {
    length: usize,
    address: Vec<i64>,
    inline_depth: Vec<usize>,
    category: Vec<u32>,
    subcategory: Vec<u32>,
    func: Vec<usize>,
    native_symbol: Vec<Option<usize>>,
    #[serde(rename = "innerWindowID")]
    inner_window_id: Vec<u32>,
    line: Vec<Option<u32>>,
    column: Vec<Option<u32>>,
}

#[derive(Default, Serialize)]
struct StackTable {
    length: usize,
    prefix: Vec<Option<usize>>,
    frame: Vec<usize>,
}

#[derive(Default, Serialize)]
struct ResourceTable {
    length: usize,
    lib: Vec<u32>,
    name: Vec<usize>,
    host: Vec<Option<u32>>,
    r#type: Vec<u32>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct NativeSymbols {
    length: usize,
    address: Vec<u64>,
    function_size: Vec<Option<u64>>,
    lib_index: Vec<u32>,
    name: Vec<usize>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Samples {
    length: usize,
    weight_type: &'static str,
    stack: Vec<Option<usize>>,
    time: Vec<f64>,
    weight: Vec<f64>,
}

impl<'r> Thread<'r> {
    fn new(run: &'r Run) -> Thread<'r> {
        Thread {
            run,
            strings: Vec::new(),
            string_index: HashMap::new(),
            functions: FuncTable::default(),
            function_index: HashMap::new(),
            frames: FrameTable::default(),
            frame_index: HashMap::new(),
            stacks: StackTable::default(),
            stack_index: HashMap::new(),
            resources: ResourceTable::default(),
            resource_index: HashMap::new(),
            natives: NativeSymbols::default(),
            native_index: HashMap::new(),
            samples: Samples::default(),
            at: 0.0,
        }
    }

    fn add(&mut self, stack: &Stack, weight: Weight) {
        let mut prefix = None;
        for &place in stack.places.iter().rev() {
            // The outermost of inlined functions comes first.
            for frame in self.frames_of(place) {
                prefix = Some(self.stack(prefix, frame));
            }
        }
        let number = weight.get(stack) as f64;
        let value = if weight == Weight::Time { number / MS } else { number };
        self.samples.length += 1;
        self.samples.stack.push(prefix);
        self.samples.time.push(self.at);
        self.samples.weight.push(value);
        self.at += value;
    }

    fn stack(&mut self, prefix: Option<usize>, frame: usize) -> usize {
        let stacks = &mut self.stacks;
        *self.stack_index.entry((prefix, frame)).or_insert_with(|| {
            stacks.length += 1;
            stacks.prefix.push(prefix);
            stacks.frame.push(frame);
            stacks.length - 1
        })
    }

    fn frames_of(&mut self, place: Place) -> Vec<usize> {
        if let Some(frames) = self.frame_index.get(&place) {
            return frames.clone();
        }
        let found = levels(self.run, place);
        let frames: Vec<usize> =
            found.iter().rev().enumerate().map(|(depth, level)| self.frame(place, level, depth)).collect();
        self.frame_index.insert(place, frames.clone());
        frames
    }

    fn frame(&mut self, place: Place, level: &Level<'r>, depth: usize) -> usize {
        let run = self.run;
        let func = self.func(level);
        let (mut address, mut native) = (-1, None);
        if let Some(index) = level.function {
            let function = &run.functions[index as usize];
            let link = match place {
                Place::Spot(spot) => run.spots[spot as usize].address,
                Place::Site(arc) => run.arcs[arc as usize].site.unwrap_or(function.address),
                Place::Function(_) | Place::Rest | Place::LeftOut => function.address,
            };
            if let Some(module) = run.module_of(function).filter(|_| link > 0) {
                address = relative(module, link) as i64;
                native = Some(self.native(index));
            }
        }
        let frames = &mut self.frames;
        frames.length += 1;
        frames.address.push(address);
        frames.inline_depth.push(depth);
        frames.category.push(0);
        frames.subcategory.push(0);
        frames.func.push(func);
        frames.native_symbol.push(native);
        frames.inner_window_id.push(0);
        frames.line.push(level.line.map(|line| line.line));
        frames.column.push(None);
        frames.length - 1
    }

    fn func(&mut self, level: &Level<'r>) -> usize {
        let run = self.run;
        let key = (level.function.filter(|_| level.inlined.is_none()), level.inlined, level.name);
        if let Some(&index) = self.function_index.get(&key) {
            return index;
        }
        let function = level.function.map(|index| &run.functions[index as usize]);
        let source = if level.inlined.is_some() { level.line } else { function.and_then(|f| f.source) };
        let (name, file) = (self.string(level.name), source.map(|line| self.string(run.file_of(line))));
        let resource = function.and_then(|f| f.module).map_or(-1, |module| self.resource(module));
        let functions = &mut self.functions;
        functions.length += 1;
        functions.name.push(name);
        functions.is_js.push(false);
        functions.relevant_for_js.push(false);
        functions.resource.push(resource);
        functions.file_name.push(file);
        functions.line_number.push(source.filter(|_| level.inlined.is_none()).map(|line| line.line));
        functions.column_number.push(None);
        self.function_index.insert(key, functions.length - 1);
        functions.length - 1
    }

    fn resource(&mut self, module: u32) -> i64 {
        if let Some(&resource) = self.resource_index.get(&module) {
            return resource;
        }
        let name = self.string(self.run.modules[module as usize].name());
        let resources = &mut self.resources;
        resources.length += 1;
        resources.lib.push(module);
        resources.name.push(name);
        resources.host.push(None);
        resources.r#type.push(LIBRARY);
        let resource = resources.length as i64 - 1;
        self.resource_index.insert(module, resource);
        resource
    }

    fn native(&mut self, function: u32) -> usize {
        if let Some(&native) = self.native_index.get(&function) {
            return native;
        }
        let known = &self.run.functions[function as usize];
        let name = self.string(&known.demangled);
        let natives = &mut self.natives;
        let module = known.module.unwrap_or(0);
        natives.length += 1;
        natives.address.push(relative(&self.run.modules[module as usize], known.address));
        natives.function_size.push(Some(known.size).filter(|&size| size > 0));
        natives.lib_index.push(module);
        natives.name.push(name);
        self.native_index.insert(function, natives.length - 1);
        natives.length - 1
    }

    fn string(&mut self, text: &'r str) -> usize {
        let strings = &mut self.strings;
        *self.string_index.entry(text).or_insert_with(|| {
            strings.push(text);
            strings.len() - 1
        })
    }

    fn json(&self, run: &Run, index: Option<u32>, number: usize, weight: Weight) -> Value {
        let thread = index.and_then(|index| run.threads.get(index as usize));
        let name = thread.map(|thread| thread.name.as_str()).filter(|name| !name.is_empty());
        let (pid, tid) = thread.map_or((0, number as u32), |thread| (thread.pid, thread.tid));
        let weight_type = if weight == Weight::Time { "tracing-ms" } else { "samples" };
        let mut samples = json!(self.samples);
        samples["weightType"] = json!(weight_type);
        json!({
            "frameTable": self.frames,
            "funcTable": self.functions,
            "markers": {
                "length": 0, "category": [], "data": [], "endTime": [], "name": [], "phase": [], "startTime": [],
            },
            "name": name.unwrap_or(&run.program),
            "isMainThread": number == 0,
            "nativeSymbols": self.natives,
            "pausedRanges": [],
            "pid": pid.to_string(),
            "processName": run.program,
            "processShutdownTime": null,
            "processStartupTime": 0,
            "processType": "default",
            "registerTime": 0,
            "resourceTable": self.resources,
            "samples": samples,
            "stackTable": self.stacks,
            "stringArray": self.strings,
            "tid": tid,
            "unregisterTime": null,
            "showMarkersInTimeline": false,
        })
    }
}

/// Returns the address relative to that of the file's first byte.
fn relative(module: &Module, link: u64) -> u64 {
    link.saturating_sub(module.start.saturating_sub(module.offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first three numbers of a GUID are 4, 2 and 2 bytes.
    #[test]
    fn breakpad_ids() {
        let id: Vec<u8> = (0x01..=0x14).collect();
        assert_eq!(breakpad_id(&id), "0403020106050807090A0B0C0D0E0F100");
        assert_eq!(breakpad_id(&[]), "0".repeat(33));
    }
}
