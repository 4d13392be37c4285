//! What it costs to measure how long each call takes.

use std::path::Path;

use anyhow::Result;
use gprofinject_skip as skip;
use gprofinject_tests::tool;

use crate::calls::{self, Subject, compile, work};
use crate::measure::{Cost, Way, Work, all_rounds, number, stats};
use crate::real::median;

/// The nanoseconds per call above the plain program of the same round: the median of the rounds, the least and the greatest.
#[derive(Clone, Copy)]
struct PerCall {
    median: f64,
    least: f64,
    greatest: f64,
}

/// A column of the rounds.
struct Case<'w> {
    how: &'static str,
    work: &'w Work,
    way: Way,
}

impl Case<'_> {
    /// Whether each call reads the time stamp counter twice.
    fn reads_clock(&self) -> bool {
        matches!(self.way, Way::Times | Way::Paths) || self.how == "-finstrument-functions"
    }
}

/// Prints nanoseconds per call of gprofinject and of other tools that know how long calls take.
///
/// # Errors
/// A program cannot be compiled or run.
pub(crate) fn compare(folder: &Path, rounds: usize) -> Result<()> {
    println!(
        "\n| times | how | calls | CPU s | times as long | extra ns/call | of all rounds | above two rdtsc |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|");
    let fib = calls::fib(folder)?;
    let (clock, hooked) = (folder.join("rdtsc"), folder.join("fib-hooked"));
    compile("rdtsc.c", &clock, &["-O1"])?;
    let hooks = tool::folder().join("data/instrument.c").display().to_string();
    compile("fib.c", &hooked, &["-O1", "-finstrument-functions", &hooks])?;
    let clock = Work { program: clock, ..work(&fib.plain.program, &["38"], None) };
    let two = of_subject(&fib, &hooked, Some(&clock), None, rounds)?;
    match tool::make_corpus(&[], &["O2", "pg", "hooked"]) {
        Ok(corpus) => {
            for name in ["lua", "speedtest1", "bzip2"] {
                let subject = calls::real(name, &corpus, folder)?;
                let hooked = corpus.join(format!("{name}-hooked"));
                of_subject(&subject, &hooked, None, two, rounds)?;
            }
        }
        Err(error) => skip::skipped("times", &format!("no corpus: {error:#}")),
    }
    Ok(())
}

/// Prints the rows of one program. `hooked` is its build with -finstrument-functions. `clock` is the one that only reads the
/// clock twice in each call; otherwise that costs `two` nanoseconds. Returns what it costs.
fn of_subject(
    subject: &Subject,
    hooked: &Path,
    clock: Option<&Work>,
    two: Option<f64>,
    rounds: usize,
) -> Result<Option<f64>> {
    let folder = subject.folder();
    let calls = subject.calls()?;
    let instrumented = Work {
        program: hooked.to_path_buf(),
        args: subject.plain.args.clone(),
        stdin: subject.plain.stdin.clone(),
    };
    let case = |how, work, way| Case { how, work, way };
    let mut cases = vec![case("plain", &subject.plain, Way::Plain)];
    cases.extend(clock.map(|work| case("two rdtsc", work, Way::Plain)));
    cases.push(case("ours, counts", &subject.plain, Way::Both));
    cases.push(case("ours, --times", &subject.plain, Way::Times));
    cases.push(case("ours, --times --min-time", &subject.plain, Way::LongTimes));
    cases.push(case("ours, --paths", &subject.plain, Way::Paths));
    cases.push(case("-finstrument-functions", &instrumented, Way::Plain));
    let perf = case("perf record -g", &subject.plain, Way::PerfRecordGraph);
    cases.extend(available(subject, perf));
    let two = print(subject, &cases, calls, two, rounds)?;

    // The slow tools do less work, and are compared with the plain program at that size.
    let small_calls = number(&stats(&subject.small, &["--hooks=entry"], folder)?.0, "/calls")?;
    let mut slow = vec![case("plain, small", &subject.small, Way::Plain)];
    slow.extend(available(subject, case("uftrace record, small", &subject.small_pg, Way::UftracePg)));
    slow.extend(available(subject, case("callgrind, small", &subject.small, Way::Callgrind)));
    print(subject, &slow, small_calls, two, rounds.min(3))?;
    Ok(two)
}

/// Returns a case if its tool is installed.
fn available<'w>(subject: &Subject, case: Case<'w>) -> Option<Case<'w>> {
    match case.way.tool() {
        Some(tool) if !skip::have(tool) => {
            skip::skipped(&format!("{} under {tool}", subject.name), &format!("no {tool}"));
            None
        }
        _ => Some(case),
    }
}

/// Runs the cases, of which the first one is the plain program, and prints a row for each. Returns what two rdtsc cost, if
/// that is known.
fn print(
    subject: &Subject,
    cases: &[Case<'_>],
    calls: u64,
    two: Option<f64>,
    rounds: usize,
) -> Result<Option<f64>> {
    let pairs: Vec<(&Work, Way)> = cases.iter().map(|case| (case.work, case.way)).collect();
    let costs = all_rounds(&pairs, rounds, subject.folder())?;
    let mut two = two;
    for (number, case) in cases.iter().enumerate() {
        let of = |cost: fn(&Cost, &Cost) -> f64| {
            costs.iter().map(|round| cost(&round[number], &round[0])).collect::<Vec<_>>()
        };
        let cpu = median(of(|cost, _| cost.cpu.as_secs_f64()));
        let longer = median(of(|cost, plain| cost.cpu.as_secs_f64() / plain.cpu.as_secs_f64()));
        let extra = of(|cost, plain| cost.cpu.as_secs_f64() - plain.cpu.as_secs_f64());
        let PerCall { median, least, greatest } = per_call(&extra, calls);
        if case.how == "two rdtsc" {
            two = Some(median);
        }
        let above = match two {
            Some(two) if case.reads_clock() => format!("{:.2}", median - two),
            _ => String::new(),
        };
        println!(
            "| {} | {} | {calls} | {cpu:.3} | {longer:.2} | {median:.2} | {least:.2} to {greatest:.2} | {above} |",
            subject.name, case.how
        );
    }
    Ok(two)
}

fn per_call(extra: &[f64], calls: u64) -> PerCall {
    let each: Vec<f64> = extra.iter().map(|seconds| seconds / calls as f64 * 1e9).collect();
    PerCall {
        least: each.iter().copied().fold(f64::MAX, f64::min),
        greatest: each.iter().copied().fold(f64::MIN, f64::max),
        median: median(each),
    }
}
