//! Programs that know their own times (`tests/known`), and what was measured of them.
//!
//! Such a program prints how long it has spun on each path of calls, by the clock that measures the calls too:
//!
//! ```text
//! calls work 600 600 0                 a function's calls, primitive calls, and those that never ended
//! spent main;hard;work 454166332       ticks on a path, the outermost function first
//! others main;hard;work 0              the part of them that other programs had, if gprofinject may not have seen them
//! quantile work 99 300017              ticks that 99 of 100 calls do not exceed
//! least work 300000                    ticks that each call takes at least
//! within work 10                       nanoseconds by which the mean of its calls may differ, or 2 % if that is more
//! cpu worker 100210340                 nanoseconds of CPU time of the thread that began with a function
//! ```
//!
//! A function's own time, its inclusive time, those of arcs and of paths follow from these lines. What a program does beside
//! spinning is small, but on a busy machine it may be interrupted there, and then takes longer. So a test compares times in
//! several runs, of which one has to agree ([`Comparison::times`]); all else has to be right in each ([`Comparison::wrong`]).

use std::collections::{BTreeMap, BTreeSet};

use gmon_run::{FunctionTimes, Recording};

/// What a program has printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub calls: BTreeMap<String, Calls>,
    /// Ticks by path.
    pub spent: BTreeMap<Vec<String>, u64>,
    /// The part of these that other programs may have had.
    pub others: BTreeMap<Vec<String>, u64>,
    /// Ticks by function and percentage of its calls.
    pub quantiles: BTreeMap<(String, u64), u64>,
    /// The least number of ticks of a function's calls.
    pub least: BTreeMap<String, u64>,
    /// The nanoseconds by which the mean own time of a function's calls may differ.
    pub within_ns: BTreeMap<String, u64>,
    /// The CPU time in nanoseconds of threads, by the function with which they began.
    pub cpu_ns: BTreeMap<String, u64>,
}

/// The numbers of a function's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    pub all: u64,
    pub primitive: u64,
    pub open: u64,
}

impl Known {
    /// Reads a program's output. Several processes may have printed; lines of anything else are left out.
    #[must_use]
    pub fn read(output: &str) -> Known {
        let mut known = Known::default();
        for line in output.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |n: usize| words.get(n).and_then(|word| word.parse::<u64>().ok());
            match (&words[..], number(2), number(3), number(4)) {
                (["calls", name, ..], Some(all), Some(primitive), Some(open)) => {
                    let calls = known.calls.entry((*name).to_owned()).or_default();
                    calls.all += all;
                    calls.primitive += primitive;
                    calls.open += open;
                }
                (["quantile", name, ..], Some(percent), Some(ticks), None) => {
                    known.quantiles.insert(((*name).to_owned(), percent), ticks);
                }
                (["least", name, _], Some(ticks), None, None) => {
                    known.least.insert((*name).to_owned(), ticks);
                }
                (["within", name, _], Some(ns), None, None) => {
                    known.within_ns.insert((*name).to_owned(), ns);
                }
                (["cpu", name, _], Some(ns), None, None) => {
                    known.cpu_ns.insert((*name).to_owned(), ns);
                }
                ([what @ ("spent" | "others"), path, _], Some(ticks), None, None) => {
                    let path = path.split(';').map(str::to_owned).collect();
                    let times = if *what == "spent" { &mut known.spent } else { &mut known.others };
                    *times.entry(path).or_default() += ticks;
                }
                _ => {}
            }
        }
        known
    }

    /// Returns the same without what other programs may have had.
    #[must_use]
    pub fn without_others(&self) -> Known {
        let mut known = self.clone();
        for (path, others) in std::mem::take(&mut known.others) {
            known.spent.entry(path).and_modify(|ticks| *ticks = ticks.saturating_sub(others));
        }
        known
    }

    /// Returns the ticks of each function with what it calls.
    #[must_use]
    pub fn inclusive(&self) -> BTreeMap<String, u64> {
        self.sums(false).inclusive
    }

    /// Returns the functions that the program names.
    fn names(&self) -> BTreeSet<&str> {
        let paths = self.spent.keys().flatten().map(String::as_str);
        paths.chain(self.calls.keys().map(String::as_str)).collect()
    }

    /// Returns the sums of ticks: by function alone, by function with what it calls, by arc with what that calls, and by
    /// path.
    fn sums(&self, is_folded: bool) -> Sums {
        let mut sums = Sums::default();
        for (path, &ticks) in &self.spent {
            let Some(last) = path.last() else { continue };
            *sums.own.entry(last.clone()).or_default() += ticks;
            for name in path.iter().collect::<BTreeSet<_>>() {
                *sums.inclusive.entry(name.clone()).or_default() += ticks;
            }
            let arcs: BTreeSet<_> = path.windows(2).map(|two| (two[0].clone(), two[1].clone())).collect();
            for arc in arcs {
                *sums.arcs.entry(arc).or_default() += ticks;
            }
            let path = if is_folded { folded(path) } else { path.clone() };
            *sums.paths.entry(path).or_default() += ticks;
        }
        sums
    }
}

/// Returns a path whose recursive calls are at the places of the outermost ones.
fn folded(path: &[String]) -> Vec<String> {
    let mut folded: Vec<String> = Vec::new();
    for name in path {
        match folded.iter().position(|earlier| earlier == name) {
            Some(at) => folded.truncate(at + 1),
            None => folded.push(name.clone()),
        }
    }
    folded
}

/// Sums of times.
#[derive(Clone, Debug, Default)]
struct Sums {
    own: BTreeMap<String, u64>,
    inclusive: BTreeMap<String, u64>,
    arcs: BTreeMap<(String, String), u64>,
    paths: BTreeMap<Vec<String>, u64>,
}

/// What a program knows beside what was measured.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// What is wrong on any machine.
    pub wrong: Vec<String>,
    pub times: Vec<Line>,
    /// Durations that a part of the calls does not exceed: what it is, the known one, and the measured one.
    pub quantiles: Vec<(String, u64, u64)>,
}

/// A time that the program knows, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Line {
    pub what: String,
    pub expected: u64,
    pub measured: u64,
    /// The same with the overhead, where that is known.
    pub raw: Option<u64>,
    pub calls: u64,
    /// The nanoseconds by which the mean of the calls may differ, if the program names them: these or those that the run tells, if they are fewer.
    pub within_ns: Option<u64>,
    /// The nanoseconds that the run tells as the error of a call.
    pub said_ns: f64,
}

impl Line {
    /// The difference as a part of the expected time.
    #[must_use]
    pub fn error(&self) -> f64 {
        (self.measured as f64 - self.expected as f64) / self.expected.max(1) as f64
    }
}

impl Comparison {
    /// Returns the times that differ by more than a part, and by more than what each call may take beside spinning: what each is the
    /// time of, and both times.
    #[must_use]
    pub fn differing(&self, part: f64) -> BTreeMap<String, String> {
        /// Nanoseconds: a program notes how long it has spun, and may print paths.
        const BESIDE: u64 = 1000;
        /// The same of a program, and what it does at its start and end.
        const ONCE: u64 = 500_000;
        /// The end of an interval of the histogram, as a multiple of its beginning.
        const WIDTH: f64 = 1.25;
        /// The part of the time by which the mean of calls may differ, if nanoseconds are less.
        const MEAN_PART: f64 = 0.02;
        let far = |line: &&Line| {
            let (expected, difference) = (line.expected as f64, line.measured.abs_diff(line.expected) as f64);
            match line.within_ns {
                // The run tells how exact it is.
                Some(ns) => {
                    let within = line.said_ns.min(ns as f64) * line.calls as f64;
                    difference > within.max(expected * MEAN_PART)
                }
                None => difference > expected * part + (ONCE + line.calls * BESIDE) as f64,
            }
        };
        let show = |line: &Line| {
            (line.what.clone(), format!("{}: {} ns, measured {} ns", line.what, line.expected, line.measured))
        };
        let times = self.times.iter().filter(far).map(show);
        let is_elsewhere = |(_, known, estimate): &&(String, u64, u64)| {
            let (known, estimate) = (*known as f64, *estimate as f64);
            !(known / WIDTH - BESIDE as f64..=known * WIDTH + BESIDE as f64).contains(&estimate)
        };
        let quantiles = self.quantiles.iter().filter(is_elsewhere);
        let quantiles = quantiles.map(|(what, known, estimate)| {
            (what.clone(), format!("{what}: {known} ns, measured {estimate} ns"))
        });
        times.chain(quantiles).collect()
    }
}

/// Compares a program's output with what was measured.
#[must_use]
pub fn compare(known: &Known, measured: &Recording, is_folded: bool) -> Comparison {
    let mut result = Comparison { wrong: consistency(measured), ..Comparison::default() };
    let names = known.names();
    let name_of = |function: u32| measured.functions[function as usize].name.as_str();
    let mut counted: BTreeMap<&str, Calls> = BTreeMap::new();
    let mut times: BTreeMap<&str, [u64; 4]> = BTreeMap::new();
    for row in &measured.rows {
        let calls = counted.entry(name_of(row.function)).or_default();
        calls.all += row.calls;
        calls.primitive += row.primitive;
        calls.open += row.open;
        let parts = [row.self_ns, row.self_raw_ns, row.inclusive_ns, row.inclusive_raw_ns];
        for (sum, part) in times.entry(name_of(row.function)).or_default().iter_mut().zip(parts) {
            *sum += part;
        }
    }
    for (name, expected) in &known.calls {
        let found = counted.get(name.as_str()).copied().unwrap_or_default();
        if found != *expected {
            result.wrong.push(format!("{name}: {found:?}, expected {expected:?}"));
        }
    }
    let sums = known.sums(is_folded);
    let ns = |ticks: u64| (ticks as f64 * 1e9 / measured.clock.ticks_per_second).round() as u64;
    let of_function = |name: &str| {
        let mut sum = FunctionTimes::default();
        measured.rows.iter().filter(|row| name_of(row.function) == name).for_each(|row| sum.add(row));
        sum
    };
    for (name, &ticks) in &known.least {
        let (min, least) = (of_function(name).min_ns, ns(ticks));
        // The overhead that is taken out is not exact.
        if min + 100 < least {
            result.wrong.push(format!("{name}: a call of {min} ns, but none takes less than {least} ns"));
        }
    }
    for ((name, percent), &ticks) in &known.quantiles {
        let (ticks, quantile) =
            (ns(ticks), of_function(name).quantile_ns(&measured.intervals, *percent as f64 / 100.0));
        result.quantiles.push((format!("{name}, {percent} %"), ticks, quantile.unwrap_or(0)));
    }
    let said_ns = measured.clock.error_ns;
    let mut add = |what: String, ticks: u64, measured: u64, raw: Option<u64>, calls: u64| {
        result.times.push(Line { what, expected: ns(ticks), measured, raw, calls, within_ns: None, said_ns });
    };
    for (name, &ticks) in &sums.own {
        let [own, own_raw, ..] = times.get(name.as_str()).copied().unwrap_or_default();
        let calls = counted.get(name.as_str()).map_or(0, |calls| calls.all);
        add(format!("{name}, self"), ticks, own, Some(own_raw), calls);
    }
    for (name, &ticks) in &sums.inclusive {
        let [.., inclusive, raw] = times.get(name.as_str()).copied().unwrap_or_default();
        let calls = counted.get(name.as_str()).map_or(0, |calls| calls.all);
        add(format!("{name}, inclusive"), ticks, inclusive, Some(raw), calls);
    }
    let mut arcs: BTreeMap<(&str, &str), [u64; 2]> = BTreeMap::new();
    for arc in &measured.arcs {
        let Some(caller) = arc.caller else { continue };
        let sum = arcs.entry((name_of(caller), name_of(arc.callee))).or_default();
        sum[0] += arc.inclusive_ns;
        sum[1] += arc.calls;
    }
    for ((caller, callee), &ticks) in &sums.arcs {
        // What the program does not name, such as a function of a library, may be between the two.
        let is_direct = arcs.contains_key(&(caller.as_str(), callee.as_str()));
        let has_others = || arcs.keys().any(|(by, called)| called == callee && !names.contains(by));
        if !is_direct && has_others() {
            continue;
        }
        let [inclusive, calls] = arcs.get(&(caller.as_str(), callee.as_str())).copied().unwrap_or_default();
        add(format!("{caller} -> {callee}"), ticks, inclusive, None, calls);
    }
    if !measured.nodes.is_empty() {
        let mut paths: BTreeMap<Vec<String>, [u64; 2]> = BTreeMap::new();
        for (path, own, calls) in paths_of(measured, &names) {
            let sum = paths.entry(path).or_default();
            sum[0] += own;
            sum[1] += calls;
        }
        for (path, &ticks) in &sums.paths {
            let [own, calls] = paths.get(path).copied().unwrap_or_default();
            add(path.join(";"), ticks, own, None, calls);
        }
    }
    for (name, &ns) in &known.within_ns {
        let what = format!("{name}, self");
        match result.times.iter_mut().find(|line| line.what == what && line.calls > 0) {
            Some(line) => line.within_ns = Some(ns),
            None => result.wrong.push(format!("{name}: no time of its calls is known")),
        }
    }
    result
}

/// Returns the paths of the tree, of which each consists of functions that the program names, with their own times and calls.
/// What other functions do in between belongs to neither.
fn paths_of(measured: &Recording, names: &BTreeSet<&str>) -> Vec<(Vec<String>, u64, u64)> {
    let mut paths: Vec<Vec<String>> = Vec::new();
    let mut found = Vec::new();
    for node in &measured.nodes {
        let mut path = node.parent.map_or_else(Vec::new, |parent| paths[parent as usize].clone());
        let name = node.function.map_or("", |function| &measured.functions[function as usize].name);
        if names.contains(name) {
            path.push(name.to_owned());
            found.push((path.clone(), node.self_ns, node.calls));
        }
        paths.push(path);
    }
    found
}

/// Returns what contradicts itself: the times of a thread are not its life, those of a function not the sum of its arcs or
/// nodes, a part is more than the whole.
#[must_use]
pub fn consistency(measured: &Recording) -> Vec<String> {
    let mut wrong = Vec::new();
    let name_of = |function: u32| measured.functions[function as usize].name.as_str();
    for (thread, number) in measured.threads.iter().zip(0_u32..) {
        let rows = measured.rows.iter().filter(|row| row.thread == number);
        let own: u64 = rows.clone().map(|row| row.self_ns).sum();
        let sum = own + thread.outside_ns + thread.overhead_ns;
        // Each of the times is rounded. What was never below zero may be so in a sum.
        let rounding = 2 + rows.clone().count() as u64 + thread.life_ns / 1000 + 2000;
        if sum.abs_diff(thread.life_ns) > rounding {
            wrong.push(format!("thread {number}: self {own} and {thread:?}"));
        }
        for row in rows {
            let name = name_of(row.function);
            let is_part = row.self_ns <= row.inclusive_ns + 1
                && row.inclusive_ns <= thread.life_ns + 1
                && row.primitive <= row.calls
                && row.open <= row.measured()
                && row.min_ns <= row.max_ns
                // A signal handler may interrupt what counts a call.
                && row.histogram.iter().sum::<u64>().abs_diff(row.measured() - row.open) <= 2;
            if !is_part {
                wrong.push(format!("{name}: {row:?} of {thread:?}"));
            }
        }
    }
    let mut by_function: BTreeMap<(u32, u32), [[u64; 3]; 3]> = BTreeMap::new();
    for row in &measured.rows {
        by_function.entry((row.thread, row.function)).or_default()[0] = [row.calls, row.open, row.self_ns];
    }
    for arc in &measured.arcs {
        let sums = &mut by_function.entry((arc.thread, arc.callee)).or_default()[1];
        *sums = [sums[0] + arc.calls, sums[1] + arc.open, sums[2] + arc.self_ns];
    }
    for node in &measured.nodes {
        let Some(function) = node.function else { continue };
        let sums = &mut by_function.entry((node.thread, function)).or_default()[2];
        *sums = [sums[0] + node.calls, 0, sums[2] + node.self_ns];
    }
    let has_all_nodes = !measured.nodes.is_empty() && measured.nodes_lost == 0;
    for ((thread, function), [row, arcs, nodes]) in by_function {
        // Negative times of arcs and nodes are shown as none.
        let is_near = |a: u64, b: u64| a <= b + b / 100 + 10_000;
        let name = name_of(function);
        if row[..2] != arcs[..2] || !is_near(row[2], arcs[2]) {
            wrong.push(format!("{name} in thread {thread}: {row:?} in the table, {arcs:?} in arcs"));
        }
        if has_all_nodes && (row[0] != nodes[0] || !is_near(row[2], nodes[2])) {
            wrong.push(format!("{name} in thread {thread}: {row:?} in the table, {nodes:?} in the tree"));
        }
    }
    wrong
}

/// Returns a row of a table: the time that the program knows, the measured one with and without the overhead, the error in
/// percent and in nanoseconds for each call, the least error of several runs, and what the run tells as the error.
#[must_use]
pub fn row(program: &str, line: &Line, least: f64) -> String {
    let raw = line.raw.map_or_else(|| "-".to_owned(), |raw| raw.to_string());
    let per_call = (line.measured as f64 - line.expected as f64) / line.calls.max(1) as f64;
    let (what, calls, expected, measured) = (&line.what, line.calls, line.expected, line.measured);
    let (error, said) = (100.0 * line.error(), line.said_ns);
    format!(
        "| {program} | {what} | {calls} | {expected} | {raw} | {measured} | {error:+.2} | {per_call:+.1} | {least:+.1} | {said:.1} |\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_follow_from_paths() {
        let known =
            Known::read("calls a 3 1 0\nspent m;a;b;a 5\nspent m;a;b 2\nnoise\nspent m;a 1\nwithin a 10\n");
        assert_eq!(known.calls["a"], Calls { all: 3, primitive: 1, open: 0 });
        assert_eq!(known.within_ns["a"], 10);
        let sums = known.sums(true);
        assert_eq!((sums.own["a"], sums.inclusive["a"], sums.inclusive["b"]), (6, 8, 7));
        assert_eq!(sums.arcs[&("a".to_owned(), "b".to_owned())], 7);
        assert_eq!(sums.arcs[&("b".to_owned(), "a".to_owned())], 5);
        assert_eq!(sums.paths[&vec!["m".to_owned(), "a".to_owned()]], 6);
    }

    #[test]
    fn means_are_within_nanoseconds_or_a_part() {
        let of = |expected, measured, within_ns, said_ns| Line {
            what: String::new(),
            expected,
            measured,
            raw: None,
            calls: 100,
            within_ns,
            said_ns,
        };
        let differ =
            |line: Line| !Comparison { times: vec![line], ..Comparison::default() }.differing(0.1).is_empty();
        let line = |expected, measured, within_ns| of(expected, measured, within_ns, 50.0);
        assert!(!differ(of(6_000, 5_800, Some(10), 2.0)) && differ(of(6_000, 5_790, Some(10), 2.0)));
        assert!(!differ(line(6_000, 5_000, Some(10))) && differ(line(6_000, 4_990, Some(10))));
        assert!(!differ(line(200_000, 204_000, Some(10))) && differ(line(200_000, 204_010, Some(10))));
        assert!(!differ(line(6_000, 400, None)), "what calls do beside spinning is not known");
    }
}
