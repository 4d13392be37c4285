//! From measured durations to the file gmon.pb.gz.

use std::collections::HashMap;
use std::time::{Duration, UNIX_EPOCH};

use gmon_measured::{
    ArcTimes, Clock, ClockSource, Function, FunctionTimes, Intervals, Measured, Module, Node, REST, Thread,
};
use gprofinject_abi::times::{BUCKETS, bucket_start};
use gprofinject_image::debug::Lines;

use crate::os::clock;
use crate::profile::model::{self, Place, Profile};
use crate::profile::times;

/// Nanoseconds of a second.
const SECOND: f64 = 1e9;

/// Returns the file's contents, or `None` if nothing was measured.
pub(crate) fn of(profile: &Profile) -> Option<Measured> {
    let times = profile.times.as_ref()?;
    let ticks_per_ns = if times.overhead.is_tsc { clock::ticks_per_nanosecond() } else { 1.0 };
    let ns = |ticks: f64| ticks / ticks_per_ns;
    let begin = clock::beginning().date;
    let passed = begin.elapsed().unwrap_or(Duration::ZERO);
    let date = begin.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let rate = profile.rate;
    let mut functions = Functions { profile, index: HashMap::new(), list: Vec::new(), lines: HashMap::new() };
    let mut measured = Measured {
        program: profile.name.clone(),
        start_unix_ns: date.as_nanos() as u64,
        duration_ns: passed.as_nanos() as u64,
        clock: Clock {
            source: if times.overhead.is_tsc { ClockSource::Tsc } else { ClockSource::ClockGettime },
            ticks_per_second: ticks_per_ns * SECOND,
            inside_ns: ns(times.overhead.inside),
            outside_ns: ns(times.overhead.outside),
            // The clock itself may be read a tick too early at one end and too late at the other.
            error_ns: ns(times.overhead.spread + 2.0),
        },
        sample_period_ns: if rate == 0 { 0 } else { 1_000_000_000 / u64::from(rate) },
        intervals: intervals(ticks_per_ns),
        modules: profile.modules.iter().map(|module| module_of(profile, module)).collect(),
        ..Measured::default()
    };
    for (thread, number) in times.threads.iter().zip(0_u32..) {
        add_thread(&mut measured, thread, number, &mut functions, ticks_per_ns);
    }
    measured.functions = functions.list;
    let samples = samples_by_function(profile);
    let index = functions.index;
    for (place, count) in samples {
        if let Some(function) = index.get(&place).and_then(|&n| measured.functions.get_mut(n as usize)) {
            function.samples = count;
        }
    }
    Some(measured)
}

fn add_thread(
    measured: &mut Measured,
    thread: &times::Thread,
    number: u32,
    functions: &mut Functions,
    ticks_per_ns: f64,
) {
    let ns = |ticks: u64| (ticks as f64 / ticks_per_ns).round() as u64;
    let signed = |ticks: i64| if ticks > 0 { ns(ticks as u64) } else { 0 };
    // By function: the sums of its arcs.
    let mut sums: HashMap<Place, FunctionTimes> = HashMap::new();
    let mut own: HashMap<Place, i64> = HashMap::new();
    for arc in &thread.arcs {
        let caller = arc.caller.map(|place| functions.index_of(place));
        let callee = functions.index_of(arc.callee);
        let has_ended = arc.calls > arc.open;
        let part = FunctionTimes {
            function: callee,
            thread: number,
            calls: arc.calls,
            open: arc.open,
            min_ns: if has_ended { ns(arc.min) } else { 0 },
            max_ns: if has_ended { ns(arc.max) } else { 0 },
            ..FunctionTimes::default()
        };
        measured.arcs.push(ArcTimes {
            caller,
            callee,
            thread: number,
            calls: arc.calls,
            open: arc.open,
            self_ns: signed(arc.own),
            inclusive_ns: ns(arc.inclusive),
            min_ns: part.min_ns,
            max_ns: part.max_ns,
        });
        let sum = own.entry(arc.callee).or_default();
        *sum = sum.saturating_add(arc.own);
        match sums.get_mut(&arc.callee) {
            Some(sum) => sum.add(&part),
            None => {
                sums.insert(arc.callee, part);
            }
        }
    }
    let mut self_ticks = 0_u64;
    for function in &thread.functions {
        let Some(mut row) = sums.remove(&function.place) else { continue };
        let own = own.get(&function.place).copied().unwrap_or(0).max(0) as u64;
        self_ticks = self_ticks.saturating_add(own);
        row.primitive = function.primitive.min(row.calls);
        row.samples = thread.samples_by_function.get(&function.place).copied().unwrap_or(0);
        row.self_ns = ns(own);
        row.self_raw_ns = ns(function.own_raw);
        row.inclusive_ns = ns(function.inclusive.max(own));
        row.inclusive_raw_ns = ns(function.inclusive_raw);
        let len = function.histogram.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
        row.histogram = function.histogram.iter().take(len).copied().collect();
        measured.rows.push(row);
    }
    let first = measured.nodes.len() as u32;
    for node in &thread.nodes {
        let function = node.place.map_or(REST, |place| functions.index_of(place));
        if function == REST {
            measured.nodes_lost = measured.nodes_lost.saturating_add(node.calls);
        }
        measured.nodes.push(Node {
            parent: node.parent.map(|parent| first + parent),
            function,
            thread: number,
            calls: node.calls,
            self_ns: ns(node.own),
            samples: 0,
        });
    }
    // Where more would have to be taken out than there is, as in functions of a few instructions, nothing is left, so less was
    // taken out. The parts of a thread's life are its sum in any case.
    let rest = thread.life.saturating_sub(self_ticks);
    let overhead = thread.overhead.min(rest);
    measured.threads.push(Thread {
        pid: thread.pid,
        tid: thread.tid,
        name: thread.name.clone(),
        life_ns: ns(thread.life),
        outside_ns: ns(rest - overhead),
        overhead_ns: ns(overhead),
        samples: thread.samples,
    });
}

/// Returns the intervals of the agent's histograms, in nanoseconds.
fn intervals(ticks_per_ns: f64) -> Intervals {
    let starts = (0..BUCKETS).map(|bucket| bucket_start(bucket) as f64 / ticks_per_ns);
    Intervals::new(starts.collect()).unwrap_or_default()
}

/// The functions with measured calls, as they are found.
struct Functions<'p> {
    profile: &'p Profile,
    index: HashMap<Place, u32>,
    list: Vec<Function>,
    /// The source lines of modules, by their indices. Reading them takes long.
    lines: HashMap<u32, Option<Lines>>,
}

impl Functions<'_> {
    /// Returns the index of the function with this entry, which is added if it is new.
    fn index_of(&mut self, place: Place) -> u32 {
        if let Some(&index) = self.index.get(&place) {
            return index;
        }
        let index = self.list.len() as u32;
        let module = self.profile.modules.get(place.module as usize);
        let name = module.and_then(|module| name_of(module, place));
        let read = || module.and_then(|module| module.program.subject.lines());
        let lines = self.lines.entry(place.module).or_insert_with(read);
        let (file, line) = lines.as_ref().and_then(|lines| source_of(lines, place)).unwrap_or_default();
        self.list.push(Function {
            file,
            line,
            name: name.unwrap_or_else(|| format!("{:#x}", place.address)),
            module: place.module,
            address: place.address,
            ..Function::default()
        });
        self.index.insert(place, index);
        index
    }
}

/// Returns the name of the function at a place.
fn name_of(module: &model::Module, place: Place) -> Option<String> {
    Some(module.program.function_at(place.address)?.names().next()?.to_owned())
}

/// Returns the source file and the line at which the function at a place begins, if that is known.
fn source_of(lines: &Lines, place: Place) -> Option<(String, u32)> {
    let after = lines.rows().partition_point(|row| row.end <= place.address);
    let location = lines.rows().get(after).filter(|row| row.start <= place.address)?.location?;
    Some((lines.files().get(location.file)?.clone(), location.line))
}

/// Returns what the file of measured times has of a module.
pub(crate) fn module_of(profile: &Profile, module: &model::Module) -> Module {
    let subject = module.program.subject;
    let build_id = module.program.image().and_then(|image| image.facts.build_id.clone()).unwrap_or_default();
    let path = module.library.map(|library| library.binary.display().to_string());
    let (start, limit) = module.program.shape.text;
    let segment = subject.code.iter().find(|segment| segment.address <= start);
    let path = path.unwrap_or_else(|| profile.path.clone());
    // The file may be read in another folder.
    let absolute = std::path::absolute(&path).map(|path| path.display().to_string());
    Module {
        name: absolute.unwrap_or(path),
        build_id,
        start: segment.map_or(start, |segment| segment.address),
        limit: segment.map_or(limit, |segment| segment.address + segment.len),
        offset: segment.map_or(0, |segment| segment.offset),
    }
}

/// Returns the samples in each function itself.
pub(crate) fn samples_by_function(profile: &Profile) -> HashMap<Place, u64> {
    let mut sums: HashMap<Place, u64> = HashMap::new();
    for (module, index) in profile.modules.iter().zip(0_u32..) {
        for (place, count) in module.samples.places() {
            if let Some(address) = module.function_at(place) {
                *sums.entry(Place { module: index, address }).or_default() += count;
            }
        }
    }
    sums
}
