//! Which source lines a report contains, and what they cost.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::html::extras::{SourceLines, SourceReader};
use crate::model::{Function, Run};

/// The lines that are shown around those that have costs.
const AROUND: u32 = 4;
/// The lines without costs that are shown between two lines of a function.
const BETWEEN: u32 = 40;
/// The lines that are shown of a function after the one with which it begins, if it has no costs by line.
const OF_FUNCTION: u32 = 24;
/// The most lines that a report contains.
const MAX_LINES: usize = 200_000;
/// The most characters of a line. Longer ones are cut off.
const MAX_WIDTH: usize = 500;

/// The lines of a file that are shown.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Source {
    /// The index of the file.
    file: u32,
    /// Whether the source was found. If not, there are only lines with costs, and their texts are empty.
    found: bool,
    line: Vec<u32>,
    /// How often each line was executed; `null` if it has no code, or was not counted.
    count: Vec<Option<u64>>,
    /// The CPU time of each line's code in nanoseconds, if any line has some.
    #[serde(rename = "self")]
    own: Option<Vec<u64>>,
    /// The same with the time in what each line calls, if that is known of any line.
    inclusive: Option<Vec<u64>>,
    /// The calls that each line has made, if any line has; `null` if none were counted.
    calls: Option<Vec<Option<u64>>>,
    text: Vec<String>,
}

/// The costs of a line.
#[derive(Clone, Copy, Default)]
struct Cost {
    executions: Option<u64>,
    self_ns: u64,
    inclusive_ns: Option<u64>,
    calls: Option<u64>,
}

/// What is known of a file before its source is read.
#[derive(Default)]
struct Wanted {
    costs: BTreeMap<u32, Cost>,
    /// The first and the last line of each range to show. After [`merged`], they are sorted and apart.
    ranges: Vec<(u32, u32)>,
    /// The longest self time of a function that begins in the file.
    longest_ns: u64,
}

/// Returns the sources of a run with costs by line or with functions that ran, those with the highest costs first. `None` if no line of
/// anything is known.
pub(crate) fn sources(run: &Run, read: &mut SourceReader) -> Option<Vec<Source>> {
    let mut files: Vec<_> = wanted(run).into_iter().collect();
    let weight = |wanted: &Wanted| {
        let longest = |cost: &Cost| cost.self_ns.max(cost.inclusive_ns.unwrap_or(0));
        let highest = wanted.costs.values().map(|cost| (longest(cost), cost.executions, cost.calls)).max();
        let (self_ns, executions, calls) = highest.unwrap_or_default();
        (self_ns.max(wanted.longest_ns), executions, calls)
    };
    files.sort_by_key(|(file, wanted)| (std::cmp::Reverse(weight(wanted)), *file));
    let mut room = MAX_LINES;
    let mut sources = Vec::new();
    for (file, wanted) in files {
        if room == 0 {
            break;
        }
        let path = run.files.get(file as usize).map_or("", String::as_str);
        let source = source(file, &wanted, read(path).as_ref());
        room = match room.checked_sub(source.line.len()) {
            Some(room) => room,
            None => continue,
        };
        if !source.line.is_empty() {
            sources.push(source);
        }
    }
    (!sources.is_empty()).then_some(sources)
}

/// Returns the costs and the lines of each file: those with costs, and those between two lines of a function that are not
/// far from each other; and the beginnings of functions that ran.
fn wanted(run: &Run) -> BTreeMap<u32, Wanted> {
    let mut files: BTreeMap<u32, Wanted> = BTreeMap::new();
    let mut lines_of: BTreeMap<(u32, u32), BTreeSet<u32>> = BTreeMap::new();
    for spot in &run.spots {
        let Some(frame) = spot.frames.first() else { continue };
        let Some(line) = frame.line.filter(|line| line.line > 0) else { continue };
        let wanted = files.entry(line.file).or_default();
        let cost = wanted.costs.entry(line.line).or_default();
        cost.self_ns = cost.self_ns.saturating_add(spot.self_ns);
        if let Some(executions) = spot.executions {
            cost.executions = Some(cost.executions.unwrap_or(0).saturating_add(executions));
        }
        if let Some(inclusive) = spot.inclusive {
            // Where the functions on a line call each other, their times have parts in common.
            let further = inclusive.ns.saturating_sub(inclusive.nested_ns);
            cost.inclusive_ns = Some(cost.inclusive_ns.unwrap_or(0).saturating_add(further));
        }
        if frame.inlined.is_some() {
            wanted.ranges.push((line.line, line.line));
        } else {
            lines_of.entry((spot.function, line.file)).or_default().insert(line.line);
        }
    }
    add_calls(run, &mut files);
    add_functions(run, &lines_of, &mut files);
    for ((_, file), lines) in lines_of {
        let ranges = &mut files.entry(file).or_default().ranges;
        let first_new = ranges.len();
        for line in lines {
            match ranges[first_new..].last_mut().filter(|range| line - range.1 <= BETWEEN) {
                Some(range) => range.1 = line,
                None => ranges.push((line, line)),
            }
        }
    }
    for wanted in files.values_mut() {
        wanted.ranges = merged(std::mem::take(&mut wanted.ranges));
    }
    files
}

/// Adds the calls that lines have made.
fn add_calls(run: &Run, files: &mut BTreeMap<u32, Wanted>) {
    for arc in &run.arcs {
        let line = arc.frames.first().and_then(|frame| frame.line).filter(|line| line.line > 0);
        let Some(line) = line else { continue };
        let wanted = files.entry(line.file).or_default();
        let cost = wanted.costs.entry(line.line).or_default();
        cost.calls = Some(cost.calls.unwrap_or(0).saturating_add(arc.calls));
        wanted.ranges.push((line.line, line.line));
    }
}

/// Adds the beginnings of the functions that ran, and more of those that have no costs by line.
fn add_functions(
    run: &Run,
    lines_of: &BTreeMap<(u32, u32), BTreeSet<u32>>,
    files: &mut BTreeMap<u32, Wanted>,
) {
    let begins = |function: &Function| function.source.filter(|line| line.line > 0);
    let mut starts: Vec<(u32, u32)> =
        run.functions.iter().filter_map(begins).map(|line| (line.file, line.line)).collect();
    starts.sort_unstable();
    for (index, function) in (0..).zip(&run.functions) {
        let Some(line) = begins(function).filter(|_| (function.calls, function.self_ns) != (0, 0)) else {
            continue;
        };
        let wanted = files.entry(line.file).or_default();
        wanted.longest_ns = wanted.longest_ns.max(function.self_ns);
        let mut last = line.line;
        if !lines_of.contains_key(&(index, line.file)) {
            last = line.line.saturating_add(OF_FUNCTION);
            // The next function has lines of its own, or did not run.
            let after = starts.partition_point(|&start| start <= (line.file, line.line));
            if let Some(&(_, next)) = starts.get(after).filter(|(file, _)| *file == line.file) {
                last = last.min(next.saturating_sub(1));
            }
        }
        wanted.ranges.push((line.line, last));
    }
}

/// Returns ranges with some lines around each, sorted, with one in place of those that touch.
fn merged(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    let mut out: Vec<(u32, u32)> = Vec::new();
    for (first, last) in ranges {
        let (first, last) = (first.saturating_sub(AROUND), last.saturating_add(AROUND));
        match out.last_mut().filter(|before| first <= before.1.saturating_add(1)) {
            Some(before) => before.1 = before.1.max(last),
            None => out.push((first, last)),
        }
    }
    out
}

fn source(file: u32, wanted: &Wanted, text: Option<&SourceLines>) -> Source {
    let mut shown: Vec<u32> = wanted.costs.keys().copied().collect();
    if let Some(text) = text {
        // A line with costs is shown although the file has changed and is shorter now.
        shown.extend(
            wanted.ranges.iter().flat_map(|&(first, last)| text.range(first..=last)).map(|(&line, _)| line),
        );
        shown.sort_unstable();
        shown.dedup();
    }
    let cost = |line: &u32| wanted.costs.get(line).copied().unwrap_or_default();
    let line_text = |line: &u32| text.and_then(|text| text.get(line)).map_or("", String::as_str);
    let has_calls = wanted.costs.values().any(|cost| cost.calls.is_some());
    let timed = wanted.costs.values().any(|cost| cost.self_ns > 0);
    let has_inclusive = wanted.costs.values().any(|cost| cost.inclusive_ns.is_some());
    Source {
        file,
        found: text.is_some(),
        count: shown.iter().map(|line| cost(line).executions).collect(),
        own: timed.then(|| shown.iter().map(|line| cost(line).self_ns).collect()),
        inclusive: has_inclusive
            .then(|| shown.iter().map(|line| cost(line).inclusive_ns.unwrap_or(0)).collect()),
        calls: has_calls.then(|| shown.iter().map(|line| cost(line).calls).collect()),
        text: shown.iter().map(|line| line_text(line).chars().take(MAX_WIDTH).collect()).collect(),
        line: shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Arc, Frame, InclusiveTime, Line, Spot};

    fn spot(function: u32, inlined: Option<u32>, file: u32, line: u32, executions: u64) -> Spot {
        let frames = vec![Frame { inlined, line: Some(Line { file, line }) }];
        Spot { function, frames, executions: Some(executions), ..Spot::default() }
    }

    #[test]
    fn what_is_shown_of_a_file() {
        let run = Run {
            files: vec!["a.c".into(), "a.h".into(), "gone.c".into()],
            spots: vec![
                spot(0, None, 0, 10, 1),
                spot(0, None, 0, 20, 7),
                spot(0, None, 0, 90, 2),
                spot(1, None, 0, 20, 3),
                // The header has become shorter.
                spot(0, Some(0), 1, 100, 9),
                spot(2, None, 2, 2, 0),
            ],
            ..Run::default()
        };
        let mut read = |path: &str| {
            let lines = (1..=22)
                .chain(90..=91)
                .chain([95, 99])
                .map(|line| (line, format!("{path} {line}")))
                .collect();
            (path != "gone.c").then_some(lines)
        };
        let sources = sources(&run, &mut read).expect("there are lines");
        assert_eq!(sources.iter().map(|source| source.file).collect::<Vec<_>>(), [0, 1, 2]);
        let of = |file| sources.iter().find(|source| source.file == file).expect("a source");
        assert_eq!(of(0).line, (6..=22).chain(90..=91).collect::<Vec<_>>());
        assert_eq!(of(0).count.iter().flatten().copied().collect::<Vec<_>>(), [1, 10, 2]);
        assert_eq!(of(0).text[0], "a.c 6");
        assert_eq!((&of(1).line[..], &of(1).count[..]), (&[99, 100][..], &[None, Some(9)][..]));
        assert_eq!((of(2).found, &of(2).line[..], &of(2).text[0][..]), (false, &[2][..], ""));
        assert_eq!((&of(0).own, &of(0).calls), (&None, &None));
    }

    /// Of two functions on a line, one of which calls the other, the time of both counts once.
    #[test]
    fn inclusive_times() {
        let inclusive = |function, line, self_ns, ns, nested_ns| Spot {
            inclusive: Some(InclusiveTime { ns, nested_ns }),
            self_ns,
            executions: None,
            ..spot(function, None, 0, line, 0)
        };
        let run = Run {
            files: vec!["a.py".into(), "a.c".into()],
            spots: vec![inclusive(0, 3, 5, 90, 40), inclusive(1, 3, 10, 40, 0), spot(2, None, 1, 3, 1)],
            ..Run::default()
        };
        let mut read =
            |path: &str| (path == "a.py").then(|| (1..=4).map(|line| (line, String::new())).collect());
        let sources = sources(&run, &mut read).expect("there are lines");
        let python = &sources[0];
        assert_eq!((python.file, &python.line[..]), (0, &[1, 2, 3, 4][..]));
        assert_eq!(python.own.as_deref(), Some(&[0, 0, 15, 0][..]));
        assert_eq!(python.inclusive.as_deref(), Some(&[0, 0, 90, 0][..]));
        assert_eq!(sources[1].inclusive, None);
    }

    /// Without costs by line, there are the functions that ran, and the calls of each line.
    #[test]
    fn functions_and_calls() {
        let function = |line, calls| Function {
            source: Some(Line { file: 0, line }),
            calls,
            self_ns: 7 * calls,
            ..Function::default()
        };
        let run = Run {
            files: vec!["a.c".into()],
            functions: vec![function(10, 1), function(20, 3), function(60, 0), function(0, 9)],
            arcs: vec![Arc {
                caller: Some(0),
                callee: 1,
                frames: vec![Frame { inlined: None, line: Some(Line { file: 0, line: 12 }) }],
                calls: 3,
                ..Arc::default()
            }],
            ..Run::default()
        };
        let mut read = |_: &str| Some((1..=99).map(|line| (line, String::new())).collect());
        let sources = sources(&run, &mut read).expect("there are functions");
        assert_eq!(sources.len(), 1);
        assert_eq!(sources[0].line, (6..=48).collect::<Vec<_>>());
        let calls = sources[0].calls.as_ref().expect("there are calls");
        assert_eq!(calls.iter().flatten().collect::<Vec<_>>(), [&3]);
        assert_eq!((calls[6], &sources[0].own), (Some(3), &None));
        assert_eq!(super::sources(&Run::default(), &mut |_| None), None);
    }
}
