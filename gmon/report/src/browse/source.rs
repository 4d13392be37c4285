//! The source of a function with what its lines have cost.

use std::collections::BTreeMap;

use gmon_export::{Function, Line, Run, Spot};

use crate::browse::data::Symbol;

/// A source file as it is shown for one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceText {
    pub(crate) path: String,
    /// The time of the whole function, of which the lines have shares, in nanoseconds.
    pub(crate) total_ns: u64,
    pub(crate) has_times: bool,
    /// Whether times with what the lines call are known, as they are of functions that an interpreter executes.
    pub(crate) has_inclusive: bool,
    pub(crate) has_executions: bool,
    pub(crate) lines: Vec<SourceLine>,
    /// The index of the line with the highest cost, or of the function's first one.
    pub(crate) start: usize,
    /// What the reader has to know.
    pub(crate) remark: Option<String>,
}

/// A line of a source file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceLine {
    pub(crate) number: u32,
    pub(crate) cost: Cost,
    pub(crate) text: String,
}

/// What a line has cost in one function, with the calls inlined there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) samples: u64,
    pub(crate) self_ns: u64,
    /// The time of the line with what it calls, as far as that is known.
    pub(crate) inclusive_ns: u64,
    /// How often the line itself was executed; `None` if it has no code, or was not counted.
    pub(crate) executions: Option<u64>,
}

/// Returns the function of a run with source lines that has this identity.
pub(crate) fn find(run: &Run, wanted: &Symbol) -> Option<u32> {
    let is_it = |function: &Function| {
        (function.address, &function.name) == (wanted.address, &wanted.name)
            && run.module_of(function) == Some(&wanted.module)
    };
    run.functions.iter().position(is_it).map(|index| index as u32)
}

/// Returns the source of a function. `read` returns the lines of a file, and `name` is what the function is called in messages.
///
/// # Errors
/// The reason why there is no source, for the user.
pub(crate) fn source(
    run: &Run,
    function: u32,
    name: &str,
    mut read: impl FnMut(&str) -> Option<BTreeMap<u32, String>>,
) -> Result<SourceText, String> {
    let known = run.functions.get(function as usize);
    let first = run.spots.partition_point(|spot| spot.function < function);
    let spots = || run.spots[first..].iter().take_while(|spot| spot.function == function);
    let begin = known.and_then(|function| function.source).or_else(|| spots().find_map(own_line));
    let Some(begin) = begin else {
        return Err(format!(
            "no source line is known of {name}: compile with -g, or install the debug file of its module"
        ));
    };
    let mut costs: BTreeMap<u32, Cost> = BTreeMap::new();
    for spot in spots() {
        // Code inlined from elsewhere is a cost of the line that contains the call.
        let Some(line) = own_line(spot).filter(|line| line.file == begin.file) else { continue };
        let cost = costs.entry(line.line).or_default();
        cost.samples = cost.samples.saturating_add(spot.samples);
        cost.self_ns = cost.self_ns.saturating_add(spot.self_ns);
        cost.inclusive_ns = cost.inclusive_ns.saturating_add(spot.inclusive.map_or(0, |time| time.ns));
        if let (Some(executions), [_]) = (spot.executions, spot.frames.as_slice()) {
            cost.executions = Some(cost.executions.unwrap_or(0).saturating_add(executions));
        }
    }
    let path = run.file_of(begin);
    let found = read(path);
    // Without the file, there are the numbers of the lines that have costs.
    let mut texts = found.unwrap_or_else(|| [(begin.line, String::new())].into());
    for &number in costs.keys() {
        texts.entry(number).or_default();
    }
    let highest = costs.iter().max_by_key(|(number, cost)| {
        let longest = cost.self_ns.max(cost.inclusive_ns);
        (longest, cost.executions.unwrap_or(0), std::cmp::Reverse(**number))
    });
    let has_costs =
        |cost: &Cost| cost.samples > 0 || cost.inclusive_ns > 0 || cost.executions.unwrap_or(0) > 0;
    let highest = highest.filter(|(_, cost)| has_costs(cost));
    let start = highest.map_or(begin.line, |(&number, _)| number);
    let mut total_ns = costs.values().fold(0_u64, |sum, cost| sum.saturating_add(cost.self_ns));
    let has_inclusive = spots().any(|spot| spot.inclusive.is_some());
    if has_inclusive {
        // Recursive functions have lines whose times have parts in common.
        let longest = costs.values().map(|cost| cost.inclusive_ns).max().unwrap_or(0);
        total_ns = total_ns.max(longest).max(known.map_or(0, |function| function.inclusive_ns));
    }
    let has_times = has_inclusive || costs.values().any(|cost| cost.samples > 0);
    let has_executions = costs.values().any(|cost| cost.executions.is_some());
    let line = |(number, text): (u32, String)| SourceLine {
        number,
        cost: costs.get(&number).copied().unwrap_or_default(),
        text,
    };
    let lines: Vec<SourceLine> = texts.into_iter().map(line).collect();
    let start = lines.partition_point(|line| line.number < start).min(lines.len().saturating_sub(1));
    Ok(SourceText {
        path: path.to_owned(),
        total_ns,
        has_times,
        has_inclusive,
        has_executions,
        lines,
        start,
        remark: None,
    })
}

/// Returns the line of a spot in the function itself.
fn own_line(spot: &Spot) -> Option<Line> {
    spot.frames.last()?.line.filter(|line| line.line > 0)
}

#[cfg(test)]
mod tests {
    use gmon_export::{Frame, InclusiveTime};

    use super::*;

    fn run() -> Run {
        let line = |file, line| Some(Line { file, line });
        let spot = |function, frames: &[Frame], samples, executions| Spot {
            function,
            frames: frames.to_vec(),
            samples,
            self_ns: samples * 1000,
            executions,
            ..Spot::default()
        };
        let own = |number| Frame { inlined: None, line: line(0, number) };
        let inlined = Frame { inlined: Some(0), line: line(1, 99) };
        Run {
            functions: vec![
                Function { source: line(0, 3), ..Function::default() },
                Function::default(),
                Function { source: line(1, 1), ..Function::default() },
            ],
            files: vec!["/a.c".into(), "/b.h".into()],
            spots: vec![
                spot(0, &[own(4)], 2, Some(7)),
                spot(0, &[inlined, own(4)], 5, Some(1000)),
                spot(0, &[own(6)], 3, None),
                spot(2, &[Frame { inlined: None, line: line(1, 2) }], 1, None),
            ],
            ..Run::default()
        }
    }

    #[test]
    fn costs_by_line_of_the_function() {
        let read =
            |path: &str| (path == "/a.c").then(|| (1..=8).map(|number| (number, "x".to_owned())).collect());
        let text = source(&run(), 0, "f", read).expect("a source");
        assert_eq!((text.lines.len(), text.start, text.total_ns, text.remark), (8, 3, 10_000, None));
        let expected = Cost { samples: 7, self_ns: 7000, inclusive_ns: 0, executions: Some(7) };
        assert_eq!((text.lines[3].cost, text.lines[5].cost.samples), (expected, 3));
        assert!(text.has_times && text.has_executions && !text.has_inclusive);
    }

    /// A function that an interpreter executes: the line that calls is the one that takes the time.
    #[test]
    fn inclusive_times() {
        let mut run = run();
        let times = [(4, 0, 9000), (6, 3000, 3000), (8, 1000, 1000)];
        run.spots = times
            .map(|(number, self_ns, ns)| Spot {
                function: 0,
                frames: vec![Frame { inlined: None, line: Some(Line { file: 0, line: number }) }],
                samples: self_ns / 1000,
                self_ns,
                inclusive: Some(InclusiveTime { ns, nested_ns: 0 }),
                ..Spot::default()
            })
            .into();
        run.functions[0].inclusive_ns = 13_000;
        let read = |_: &str| Some((1..=8).map(|number| (number, "x".to_owned())).collect());
        let text = source(&run, 0, "f", read).expect("a source");
        assert_eq!((text.start, text.total_ns, text.has_inclusive, text.has_times), (3, 13_000, true, true));
        let costs: Vec<(u64, u64)> =
            text.lines.iter().map(|line| (line.cost.self_ns, line.cost.inclusive_ns)).collect();
        assert_eq!(costs[3..], [(0, 9000), (0, 0), (3000, 3000), (0, 0), (1000, 1000)]);
        // A recursive function is not in the model, or its time is not known: its lines say more.
        run.functions[0].inclusive_ns = 0;
        let text = source(&run, 0, "f", |_| None).expect("numbers of lines");
        assert_eq!(text.total_ns, 9000);
    }

    #[test]
    fn without_the_file_or_any_line() {
        let text = source(&run(), 2, "f", |_| None).expect("numbers of lines");
        assert_eq!(text.lines.iter().map(|line| line.number).collect::<Vec<_>>(), [1, 2]);
        let error = source(&run(), 1, "f", |_| None).expect_err("no line is known");
        assert!(error.contains("-g"), "{error}");
        assert!(source(&Run::default(), 5, "f", |_| None).is_err());
    }
}
