//! Speedscope's file format: <https://www.speedscope.app/file-format-schema.json>.
//!
//! There is a sampled profile for each thread, whose samples are stacks with weights. A frame is a function with the place of its
//! definition: speedscope takes frames with different lines for different functions, and would show each line of a function alone.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use serde::Serialize;

use crate::model::{Line, Run};
use crate::stacks::{Level, Place, Weight, levels, visit};

#[derive(Serialize)]
struct File<'r> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    name: &'r str,
    #[serde(rename = "activeProfileIndex")]
    active_profile_index: usize,
    shared: Shared<'r>,
    profiles: Vec<Profile>,
}

#[derive(Serialize)]
struct Shared<'r> {
    frames: Vec<Frame<'r>>,
}

#[derive(Serialize)]
struct Frame<'r> {
    name: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
struct Profile {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    #[serde(rename = "startValue")]
    start_value: u64,
    #[serde(rename = "endValue")]
    end_value: u64,
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

pub(crate) fn write(run: &Run, out: &mut dyn Write) -> io::Result<()> {
    let weight = Weight::of(run);
    let mut frames = Frames { index: HashMap::new(), list: Vec::new() };
    let mut places: HashMap<Place, Vec<usize>> = HashMap::new();
    let mut threads: BTreeMap<Option<u32>, Samples> = BTreeMap::new();
    visit(run, |stack| {
        let number = weight.get(stack);
        if number == 0 {
            return Ok(());
        }
        let mut sample = Vec::new();
        for &place in stack.places.iter().rev() {
            let indexes = places.entry(place).or_insert_with(|| {
                levels(run, place).iter().rev().map(|level| frames.index_of(run, level)).collect()
            });
            sample.extend_from_slice(indexes);
        }
        let (samples, weights) = threads.entry(stack.thread).or_default();
        samples.push(sample);
        weights.push(number);
        Ok(())
    })?;
    let profile = |(thread, (samples, weights)): (Option<u32>, Samples)| {
        let thread = thread.and_then(|thread| run.threads.get(thread as usize));
        Profile {
            r#type: "sampled",
            name: thread
                .map_or_else(|| run.program.clone(), |t| format!("{} {}", t.name, t.tid).trim().to_owned()),
            unit: if weight == Weight::Time { "nanoseconds" } else { "none" },
            start_value: 0,
            end_value: weights.iter().fold(0, |sum, &weight| sum.saturating_add(weight)),
            samples,
            weights,
        }
    };
    let mut profiles: Vec<_> = threads.into_iter().map(profile).collect();
    profiles.sort_by_key(|profile| std::cmp::Reverse(profile.end_value));
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: concat!("gprofinject ", env!("CARGO_PKG_VERSION")),
        name: &run.program,
        active_profile_index: 0,
        shared: Shared { frames: frames.list },
        profiles,
    };
    Ok(serde_json::to_writer(gmon::EscapedJson(out), &file)?)
}

/// The stacks of a thread, and the weight of each.
type Samples = (Vec<Vec<usize>>, Vec<u64>);

/// The name of a frame, its file, and the index of its function if it is not inlined.
type Key<'r> = (&'r str, Option<&'r str>, Option<u32>);

/// The frames, each once.
struct Frames<'r> {
    index: HashMap<Key<'r>, usize>,
    list: Vec<Frame<'r>>,
}

impl<'r> Frames<'r> {
    fn index_of(&mut self, run: &'r Run, level: &Level<'r>) -> usize {
        let function = level.function.map(|index| &run.functions[index as usize]);
        let module =
            || function.and_then(|function| run.module_of(function)).map(|module| module.path.as_str());
        // Where an inlined function begins is not known: the first of its lines that is met stands for it.
        let place: Option<Line> = match level.inlined {
            Some(_) => level.line,
            None => function.and_then(|function| function.source),
        };
        let file = place.map(|line| run.file_of(line)).or_else(module);
        let line = place.map(|line| line.line);
        // Functions of the same name in two modules are two frames, which speedscope tells apart by their files.
        let own = level.function.filter(|_| level.inlined.is_none());
        *self.index.entry((level.name, file, own)).or_insert_with(|| {
            self.list.push(Frame { name: level.name, file, line });
            self.list.len() - 1
        })
    }
}
