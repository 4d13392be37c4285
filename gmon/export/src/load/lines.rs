//! Adds source lines and inlined calls to functions, call sites and samples.

use std::collections::HashMap;
use std::path::Path;

use gmon_run::LineSamples;
use gprofinject_image::debug::{DebugFile, FileIndex, Lines, debug_files};
use gprofinject_image::names::demangle::demangle;

use crate::model::{Frame, InclusiveTime, Inlined, Line, Run, Spot};

/// A run that gets its source lines, module by module.
pub(crate) struct Places<'r> {
    run: &'r mut Run,
    files: HashMap<String, u32>,
    inlined: HashMap<String, u32>,
    /// The index of the spot of each function and line.
    spots: HashMap<(u32, Vec<Frame>), usize>,
    /// The hits of each spot, which need not be whole.
    hits: Vec<f64>,
}

impl<'r> Places<'r> {
    pub(crate) fn new(run: &'r mut Run) -> Places<'r> {
        let spots = run.spots.iter().enumerate();
        let spots = spots.map(|(index, spot)| ((spot.function, spot.frames.clone()), index)).collect();
        let index = |list: &[String]| (0..).zip(list).map(|(index, text)| (text.clone(), index)).collect();
        let files = index(&run.files);
        let inlined = (0..).zip(&run.inlined).map(|(index, inlined)| (inlined.name.clone(), index)).collect();
        Places { hits: vec![0.0; run.spots.len()], run, files, inlined, spots }
    }

    /// Returns the line of an address and the inlined calls of which it is a part; empty if no line is known.
    pub(crate) fn frames(&mut self, lines: &Lines, address: u64) -> Vec<Frame> {
        let Some(location) = lines.location(address) else { return Vec::new() };
        let own = self.line(lines, location.file, location.line);
        let found = lines.frames(address);
        let Some(last) = found.len().checked_sub(1) else {
            return vec![Frame { inlined: None, line: Some(own) }];
        };
        let frame = |(index, frame): (usize, gprofinject_image::debug::Frame)| {
            // The line table has the innermost line.
            let line = match index {
                0 => Some(own),
                _ => frame.location.map(|location| self.line(lines, location.file, location.line)),
            };
            let inlined = (index < last).then(|| self.inlined(frame.name.unwrap_or_else(|| "?".to_owned())));
            Frame { inlined, line }
        };
        found.into_iter().enumerate().map(frame).collect()
    }

    fn line(&mut self, lines: &Lines, file: FileIndex, line: u32) -> Line {
        let path = lines.files().get(file).map_or("?", String::as_str);
        let file = match self.files.get(path) {
            Some(&file) => file,
            None => {
                let file = self.run.files.len() as u32;
                self.files.insert(path.to_owned(), file);
                self.run.files.push(path.to_owned());
                file
            }
        };
        Line { file, line }
    }

    fn inlined(&mut self, name: String) -> u32 {
        match self.inlined.get(&name) {
            Some(&index) => index,
            None => {
                let index = self.run.inlined.len() as u32;
                let demangled = demangle(&name).into_owned();
                self.inlined.insert(name.clone(), index);
                self.run.inlined.push(Inlined { name, demangled });
                index
            }
        }
    }

    /// Returns the spot of a line in a function, which is added if it is new.
    pub(crate) fn spot(&mut self, function: u32, frames: Vec<Frame>, address: u64) -> &mut Spot {
        let index = self.spot_index(function, frames, address);
        &mut self.run.spots[index]
    }

    fn spot_index(&mut self, function: u32, frames: Vec<Frame>, address: u64) -> usize {
        let spots = &mut self.run.spots;
        let index = *self.spots.entry((function, frames)).or_insert_with_key(|(function, frames)| {
            spots.push(Spot { function: *function, frames: frames.clone(), address, ..Spot::default() });
            spots.len() - 1
        });
        self.hits.resize(spots.len(), 0.0);
        spots[index].address = spots[index].address.min(address);
        index
    }

    /// Sorts what was added.
    pub(crate) fn finish(self) {
        let period = self.run.sample_period_ns as f64;
        for (spot, hits) in self.run.spots.iter_mut().zip(self.hits) {
            spot.samples = hits.round() as u64;
            spot.self_ns = (hits * period).round() as u64;
        }
        self.run.spots.sort_by_key(|spot| (spot.function, spot.address));
    }
}

/// Adds the samples of a line that an interpreter has executed in this function. A function without a file has no lines.
pub(crate) fn add_interpreted(places: &mut Places, function: u32, of: &LineSamples) {
    let period = places.run.sample_period_ns;
    let known = places.run.functions.get(function as usize);
    let Some(begin) = known.and_then(|known| known.source) else { return };
    let line = Line { file: begin.file, line: of.line };
    let index = places.spot_index(function, vec![Frame { inlined: None, line: Some(line) }], 0);
    places.hits[index] += of.own as f64;
    let sum = places.run.spots[index].inclusive.get_or_insert_default();
    let add = |sum: u64, samples: u64| sum.saturating_add(samples.saturating_mul(period));
    *sum = InclusiveTime { ns: add(sum.ns, of.inclusive), nested_ns: add(sum.nested_ns, of.nested) };
}

/// Returns the line information of a program, from itself or from its debug file.
pub(crate) fn lines_of(path: &Path, bytes: &[u8]) -> Option<Lines> {
    let of_debug_file = |file: DebugFile| Lines::of(&file.bytes, path, Some(&file.path)).ok();
    Lines::of(bytes, path, None).ok().or_else(|| debug_files(path, bytes).find_map(of_debug_file))
}

/// Adds the lines of one module: where its functions begin, its call sites, and its samples, which are
/// `(function, link address, hits)`.
pub(crate) fn add_lines(places: &mut Places, module: u32, lines: &Lines, samples: &[(u32, u64, f64)]) {
    for index in 0..places.run.functions.len() {
        let function = &places.run.functions[index];
        if function.module == Some(module)
            && function.address > 0
            && let Some(location) = lines.location(function.address)
        {
            let line = places.line(lines, location.file, location.line);
            places.run.functions[index].source = Some(line);
        }
    }
    for index in 0..places.run.arcs.len() {
        let arc = &places.run.arcs[index];
        let caller = arc.caller.and_then(|caller| places.run.functions.get(caller as usize));
        if let (Some(site), true) = (arc.site, caller.is_some_and(|caller| caller.module == Some(module))) {
            places.run.arcs[index].frames = places.frames(lines, site);
        }
    }
    for &(function, address, hits) in samples {
        let frames = places.frames(lines, address);
        if !frames.is_empty() {
            let index = places.spot_index(function, frames, address);
            places.hits[index] += hits;
        }
    }
}
