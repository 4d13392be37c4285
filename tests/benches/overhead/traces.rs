//! What it costs to write every call to a trace.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gprofinject_skip as skip;
use gprofinject_tests::{run, tool};

use crate::calls::{self, Subject, compile, work};
use crate::measure::{LIMIT, Work, number};
use crate::real::median;

/// A way to run a program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    /// With these options of gprofinject beside `--trace`.
    Ours(&'static [&'static str]),
    /// With `--times` and no trace.
    Times,
    /// Under uftrace; the program was built with -pg.
    Uftrace,
    Ltrace,
}

/// A row of the table.
struct Case<'w> {
    how: &'static str,
    work: &'w Work,
    way: Way,
    /// The events of each call: of its beginning and its end.
    events: f64,
}

/// What one run cost.
struct Cost {
    wall: Duration,
    cpu: Duration,
    lost: u64,
    bytes: u64,
}

/// Prints nanoseconds and bytes per event, and lost events, of gprofinject and of other tools that write each call.
///
/// # Errors
/// A program cannot be compiled or run.
pub(crate) fn compare(folder: &Path, rounds: usize) -> Result<()> {
    println!(
        "\n| traces | how | events | wall s | CPU s | ns per event above plain (wall) | of all rounds | lost | bytes per event |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|");
    let fib = calls::fib(folder)?;
    let (clock, hooked) = (folder.join("rdtsc"), folder.join("fib-hooked"));
    compile("rdtsc.c", &clock, &["-O1"])?;
    let hooks = tool::folder().join("data/instrument.c").display().to_string();
    compile("fib.c", &hooked, &["-O1", "-finstrument-functions", &hooks])?;
    let clock = Work { program: clock, ..work(&fib.plain.program, &["38"], None) };
    of_subject(&fib, &hooked, Some(&clock), folder, rounds)?;
    match tool::make_corpus(&[], &["O2", "pg", "hooked"]) {
        Ok(corpus) => {
            for name in ["lua", "speedtest1"] {
                let subject = calls::real(name, &corpus, folder)?;
                of_subject(&subject, &corpus.join(format!("{name}-hooked")), None, folder, rounds)?;
            }
        }
        Err(error) => skip::skipped("traces", &format!("no corpus: {error:#}")),
    }
    Ok(())
}

/// Prints the rows of one program. `hooked` is its build with -finstrument-functions, and `clock` one that only reads the clock
/// twice in each call.
fn of_subject(
    subject: &Subject,
    hooked: &Path,
    clock: Option<&Work>,
    folder: &Path,
    rounds: usize,
) -> Result<()> {
    let calls = subject.calls()?;
    let hooked = Work {
        program: hooked.to_path_buf(),
        args: subject.plain.args.clone(),
        stdin: subject.plain.stdin.clone(),
    };
    let case = |how, work, way, events| Case { how, work, way, events };
    let mut cases = vec![case("plain", &subject.plain, Way::Plain, 2.0)];
    cases.extend(clock.map(|clock| case("rdtsc alone", clock, Way::Plain, 2.0)));
    cases.push(case("ours, --times (no trace)", &subject.plain, Way::Times, 2.0));
    cases.push(case("ours, --trace", &subject.plain, Way::Ours(&[]), 2.0));
    cases.push(case("ours, drop-new", &subject.plain, Way::Ours(&["--trace-full=drop-new"]), 2.0));
    cases.push(case("ours, last 16 MiB", &subject.plain, Way::Ours(&["--trace-size=16"]), 2.0));
    cases.push(case("ours, --trace-depth 3", &subject.plain, Way::Ours(&["--trace-depth=3"]), 2.0));
    cases.push(case(
        "ours, --trace-min-time 1000",
        &subject.plain,
        Way::Ours(&["--trace-min-time=1000"]),
        2.0,
    ));
    cases.push(case("-finstrument-functions, rdtsc", &hooked, Way::Plain, 2.0));
    print(subject, &cases, calls, folder, rounds)?;
    let small_calls =
        number(&crate::measure::stats(&subject.small, &["--hooks=entry"], subject.folder())?.0, "/calls")?;
    let mut slow = vec![case("plain, small", &subject.small, Way::Plain, 2.0)];
    slow.push(case("ours, --trace, small", &subject.small, Way::Ours(&[]), 2.0));
    for (tool, work, way) in
        [("uftrace", &subject.small_pg, Way::Uftrace), ("ltrace", &subject.small, Way::Ltrace)]
    {
        if skip::have(tool) {
            let how = if tool == "uftrace" {
                "uftrace record, small"
            } else {
                "ltrace -f, library calls only, small"
            };
            slow.push(case(how, work, way, 2.0));
        } else {
            skip::skipped(&format!("{} under {tool}", subject.name), &format!("no {tool}"));
        }
    }
    print(subject, &slow, small_calls, folder, rounds.min(3))
}

fn print(subject: &Subject, cases: &[Case<'_>], calls: u64, folder: &Path, rounds: usize) -> Result<()> {
    let mut costs: Vec<Vec<Cost>> = Vec::new();
    for _ in 0..rounds {
        costs.push(cases.iter().map(|case| one(case, folder)).collect::<Result<_>>()?);
    }
    for (index, case) in cases.iter().enumerate() {
        let events = calls as f64 * case.events;
        let of = |figure: &dyn Fn(&Cost, &Cost) -> f64| -> Vec<f64> {
            costs.iter().map(|round| figure(&round[index], &round[0])).collect()
        };
        let wall = median(of(&|cost, _| cost.wall.as_secs_f64()));
        let cpu = median(of(&|cost, _| cost.cpu.as_secs_f64()));
        let each = of(&|cost, plain| (cost.wall.as_secs_f64() - plain.wall.as_secs_f64()) / events * 1e9);
        let (least, greatest) = each.iter().fold((f64::MAX, f64::MIN), |(l, g), &n| (l.min(n), g.max(n)));
        let lost = median(of(&|cost, _| cost.lost as f64));
        let bytes = median(of(&|cost, _| cost.bytes as f64)) / events;
        println!(
            "| {} | {} | {events:.0} | {wall:.3} | {cpu:.3} | {:.2} | {least:.2} to {greatest:.2} | {lost:.0} | {bytes:.2} |",
            subject.name,
            case.how,
            median(each),
        );
    }
    Ok(())
}

fn one(case: &Case<'_>, folder: &Path) -> Result<Cost> {
    let (gmon, trace, stats) = (folder.join("gmon.out"), folder.join("trace"), folder.join("stats.json"));
    let data = folder.join("uftrace.data");
    let mut command = match case.way {
        Way::Plain => Command::new(&case.work.program),
        Way::Times => tool::command(
            &["-q", "--times", "--libs=none", "--rate=0"],
            &gmon,
            &case.work.program,
            &case.work.args,
        )?,
        Way::Ours(options) => {
            let (trace, stats) =
                (format!("--trace={}", trace.display()), format!("--stats={}", stats.display()));
            let options = [&["-q", "--libs=none", "--rate=0", &trace, &stats][..], options].concat();
            tool::command(&options, &gmon, &case.work.program, &case.work.args)?
        }
        Way::Uftrace => {
            let mut command = Command::new("uftrace");
            command.args(["record", "--no-pager", "--no-libcall", "-d"]).arg(&data).arg(&case.work.program);
            command
        }
        Way::Ltrace => {
            let mut command = Command::new("ltrace");
            command.args(["-f", "-o"]).arg(&trace).arg(&case.work.program);
            command
        }
    };
    if matches!(case.way, Way::Plain | Way::Uftrace | Way::Ltrace) {
        command.args(&case.work.args).env("LD_BIND_NOW", "1");
    }
    let _ = std::fs::remove_file(&trace);
    command.current_dir(folder);
    let outcome = run::run(command, case.work.stdin.as_deref(), LIMIT)?;
    if !outcome.status.success() {
        bail!("{}: status {}: {}", case.work.program.display(), outcome.code(), outcome.stderr_text());
    }
    let (mut lost, mut bytes) = (0, std::fs::metadata(&trace).map_or(0, |file| file.len()));
    match case.way {
        Way::Ours(_) => {
            let read = std::fs::read(&stats).context("no statistics")?;
            lost = number(&serde_json::from_slice(&read)?, "/trace/lost")?;
        }
        Way::Uftrace => {
            let text = outcome.stderr_text();
            // "LOST 123 records"
            let lines = text.lines().filter(|line| line.to_ascii_lowercase().contains("lost"));
            let numbers =
                lines.flat_map(str::split_ascii_whitespace).filter_map(|word| word.parse::<u64>().ok());
            lost = numbers.max().unwrap_or(0);
            bytes = std::fs::read_dir(&data).map_or(0, |entries| {
                entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).sum()
            });
        }
        _ => {}
    }
    Ok(Cost { wall: outcome.wall, cpu: outcome.cpu(), lost, bytes })
}
