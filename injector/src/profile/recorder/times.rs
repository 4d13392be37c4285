//! Measured durations in the recording of a run.

use std::collections::HashMap;
use std::ops::Range;

use gmon_run::ticks::Thread;
use gmon_run::{Clock, FunctionTimes, Intervals};
use gprofinject_abi::times::{BUCKETS, bucket_start};
use gprofinject_image::debug::Lines;

use crate::profile::model::{Place, Profile};
use crate::profile::recorder::places::Places;
use crate::profile::recorder::tables::Tables;
use crate::profile::times::Times;

/// Nanoseconds of a second.
const SECOND: f64 = 1e9;

/// The source lines of modules, by their indexes in the recording. Reading them takes long.
#[derive(Default)]
pub(super) struct Sources(HashMap<u32, Option<Lines>>);

/// A program whose durations are added.
#[derive(Clone, Copy)]
pub(super) struct Of<'a, 'p> {
    /// Its index.
    pub(super) program: u32,
    pub(super) profile: &'p Profile,
    /// The indexes of the profile's modules.
    pub(super) modules: &'a [u32],
}

/// What has to be known to add the threads of a program.
struct Adding<'a, 'p> {
    of: Of<'a, 'p>,
    tables: &'a mut Tables,
    sources: &'a mut Sources,
    places: &'a mut Places<'p, u32>,
    ticks_per_ns: f64,
    /// The functions that were met, by their entries.
    met: HashMap<Place, u32>,
}

/// Adds the durations of a program's calls. Returns the indexes of each thread's nodes.
pub(super) fn add<'p>(
    tables: &mut Tables,
    sources: &mut Sources,
    of: &Of<'_, 'p>,
    times: &Times,
    places: &mut Places<'p, u32>,
) -> Vec<Range<u32>> {
    let ticks_per_ns = times.overhead.ticks_per_ns();
    let ns = |ticks: f64| ticks / ticks_per_ns;
    // A call did not cost everywhere what the calibration said.
    let misfit = times.misfit * (times.overhead.inside + times.overhead.outside);
    let known = &mut tables.recording.clock;
    *known = Clock {
        source: times.overhead.clock.source(),
        ticks_per_second: ticks_per_ns * SECOND,
        inside_ns: known.inside_ns.max(ns(times.overhead.inside)),
        outside_ns: known.outside_ns.max(ns(times.overhead.outside)),
        error_ns: known.error_ns.max(ns(times.overhead.spread + times.overhead.reading())).max(ns(misfit)),
        counted_below_ns: known.counted_below_ns.max(times.overhead.min_ns as f64),
    };
    tables.recording.intervals = intervals(ticks_per_ns);
    let mut adding = Adding { of: *of, tables, sources, places, ticks_per_ns, met: HashMap::new() };
    let nodes = times.threads.iter().map(|thread| {
        let first = adding.tables.recording.nodes.len() as u32;
        adding.add_thread(thread);
        first..adding.tables.recording.nodes.len() as u32
    });
    nodes.collect()
}

impl Adding<'_, '_> {
    /// Returns the index of the function with this entry, whose source line is looked for if it is new.
    fn index_of(&mut self, place: Place) -> u32 {
        if let Some(&index) = self.met.get(&place) {
            return index;
        }
        let Of { profile, modules, .. } = self.of;
        let index = self.places.entry(place, |found| self.tables.of_profile(modules, &found));
        self.met.insert(place, index);
        let module = profile.modules.get(place.module as usize);
        let of = modules.get(place.module as usize).copied().unwrap_or(0);
        let read = || module.and_then(|module| module.program.subject.lines());
        let lines = self.sources.0.entry(of).or_insert_with(read);
        let found = lines.as_ref().and_then(|lines| source_of(lines, place));
        if let (Some((file, line)), Some(function)) =
            (found, self.tables.recording.functions.get_mut(index as usize))
        {
            (function.file, function.line) = (file, line);
        }
        index
    }

    fn add_thread(&mut self, thread: &Thread<Place>) {
        for place in thread.known() {
            self.index_of(place);
        }
        let recording = &mut self.tables.recording;
        let first = recording.rows.len();
        let ns = |ticks: u64| (ticks as f64 / self.ticks_per_ns).round() as u64;
        recording.add_thread(self.of.program, thread, |place| self.met[&place], ns);
        let rows = recording.rows.get(first..).unwrap_or_default();
        let sum = |of: fn(&FunctionTimes) -> u64| rows.iter().map(of).fold(0, u64::saturating_add);
        let (self_ns, calls) = (sum(|row| row.self_ns), sum(|row| row.calls));
        if let Some(process) = self.tables.process(thread.pid) {
            process.self_ns = process.self_ns.saturating_add(self_ns);
            process.calls = process.calls.saturating_add(calls);
        }
    }
}

/// Returns the intervals of the agent's histograms, in nanoseconds.
fn intervals(ticks_per_ns: f64) -> Intervals {
    let starts = (0..BUCKETS).map(|bucket| bucket_start(bucket) as f64 / ticks_per_ns);
    Intervals::new(starts.collect()).unwrap_or_default()
}

/// Returns the source file and the line at which the function at a place begins, if that is known.
fn source_of(lines: &Lines, place: Place) -> Option<(String, u32)> {
    let after = lines.rows().partition_point(|row| row.end <= place.address);
    let location = lines.rows().get(after).filter(|row| row.start <= place.address)?.location?;
    Some((lines.files().get(location.file)?.clone(), location.line))
}
