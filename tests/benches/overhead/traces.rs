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
    /// With this option in place of `--trace`, if any: calls are counted, or measured too.
    Counted(Option<&'static str>),
    /// Under uftrace; the program was built with -pg.
    Uftrace,
    /// Under ltrace, which sees only [`ALLOCATOR`].
    Ltrace,
}

/// A row of the table.
struct Case<'w> {
    how: &'static str,
    work: &'w Work,
    way: Way,
    /// Beginnings and ends of calls.
    events: u64,
}

/// The functions of libc by which gprofinject is compared with ltrace. ltrace stops the program at each call that it makes of them
/// through its PLT, so all library functions would take minutes; and a call of `memcpy` or `strlen` is one of another function,
/// which the processor decides.
const ALLOCATOR: [&str; 3] = ["malloc", "free", "realloc"];
/// gprofinject's options for the same calls. It also sees those that libc makes itself.
const OURS_ALLOCATOR: &[&str] = &["--libs=libc.so*", "-Imalloc", "-Ifree", "-Irealloc"];

/// What one run cost.
struct Cost {
    wall: Duration,
    cpu: Duration,
    /// `None` if the tool does not say.
    lost: Option<u64>,
    bytes: u64,
}

fn heading() {
    println!(
        "\n| traces | how | events | wall s | CPU s | ns per event above plain (wall) | of all rounds | lost | bytes per event |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|");
}

/// Prints nanoseconds and bytes per event, and lost events, of gprofinject and of other tools that write each call.
///
/// # Errors
/// A program cannot be compiled or run.
pub(crate) fn compare(folder: &Path, rounds: usize) -> Result<()> {
    heading();
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
    let case = |how, work, way| Case { how, work, way, events: calls * 2 };
    let mut cases = vec![case("plain", &subject.plain, Way::Plain)];
    cases.extend(clock.map(|clock| case("rdtsc alone", clock, Way::Plain)));
    cases.push(case("ours, calls counted (no trace)", &subject.plain, Way::Counted(None)));
    cases.push(case("ours, --times (no trace)", &subject.plain, Way::Counted(Some("--times"))));
    cases.push(case("ours, --trace", &subject.plain, Way::Ours(&[])));
    cases.push(case("ours, drop-new", &subject.plain, Way::Ours(&["--trace-full=drop-new"])));
    cases.push(case("ours, last 16 MiB", &subject.plain, Way::Ours(&["--trace-size=16"])));
    cases.push(case("ours, --trace-depth 3", &subject.plain, Way::Ours(&["--trace-depth=3"])));
    cases.push(case("ours, --trace-min-time 1000", &subject.plain, Way::Ours(&["--trace-min-time=1000"])));
    cases.push(case("-finstrument-functions, rdtsc", &hooked, Way::Plain));
    print(subject, &cases, folder, rounds)?;
    let calls =
        number(&crate::measure::stats(&subject.small, &["--hooks=entry"], subject.folder())?.0, "/calls")?;
    let case = |how, work, way| Case { how, work, way, events: calls * 2 };
    let mut slow = vec![case("plain, small", &subject.small, Way::Plain)];
    slow.push(case("ours, --trace, small", &subject.small, Way::Ours(&[])));
    if skip::have("uftrace") {
        slow.push(case("uftrace record, small", &subject.small_pg, Way::Uftrace));
    } else {
        skip::skipped(&format!("{} under uftrace", subject.name), "no uftrace");
    }
    print(subject, &slow, folder, rounds.min(3))
}

/// Prints the same of calls of libc's allocator, of which ltrace sees each. Every tool's time and bytes are divided by the events
/// that it has written itself.
///
/// # Errors
/// A program cannot be compiled or run, or the tools do not see the same calls.
pub(crate) fn compare_ltrace(folder: &Path, rounds: usize) -> Result<()> {
    if !skip::have("ltrace") {
        skip::skipped("traces under ltrace", "no ltrace");
        return Ok(());
    }
    // Not lua: its longjmp makes ltrace abort after a hundred thousand calls, because it never forgets those that are left.
    let subject = match tool::make_corpus(&["speedtest1"], &["O2", "pg"]) {
        Ok(corpus) => calls::real("speedtest1", &corpus, folder)?,
        Err(error) => {
            skip::skipped("traces under ltrace", &format!("no corpus: {error:#}"));
            return Ok(());
        }
    };
    heading();
    let case = |how, way| Case { how, work: &subject.small, way, events: 1 };
    let mut cases = [
        case("plain, small", Way::Plain),
        case("ours, malloc, free and realloc, small", Way::Ours(OURS_ALLOCATOR)),
        case("ltrace -f, the same, small", Way::Ltrace),
    ];
    one(&cases[1], folder)?;
    let ours = 2 * number(&statistics(folder)?, "/trace/calls")?;
    one(&cases[2], folder)?;
    let ltraces = 2 * ltraced(&folder.join("trace"))?;
    if ours.abs_diff(ltraces) > ours / 100 {
        bail!("gprofinject has {ours} events of the allocator, and ltrace {ltraces}");
    }
    (cases[0].events, cases[1].events, cases[2].events) = (ours, ours, ltraces);
    print(&subject, &cases, folder, rounds.min(3))
}

/// Returns how many calls a file of ltrace has: `6287 prog->malloc(48) = 0x559b874932b0`. A call in which others are has a second line for
/// its end.
fn ltraced(file: &Path) -> Result<u64> {
    let text = std::fs::read_to_string(file).context("nothing from ltrace")?;
    let begins = |line: &&str| ALLOCATOR.iter().any(|name| line.contains(&format!("->{name}(")));
    Ok(text.lines().filter(begins).count() as u64)
}

fn statistics(folder: &Path) -> Result<serde_json::Value> {
    let text = std::fs::read(folder.join("stats.json")).context("no statistics")?;
    Ok(serde_json::from_slice(&text)?)
}

fn print(subject: &Subject, cases: &[Case<'_>], folder: &Path, rounds: usize) -> Result<()> {
    let mut costs: Vec<Vec<Cost>> = Vec::new();
    for _ in 0..rounds {
        costs.push(cases.iter().map(|case| one(case, folder)).collect::<Result<_>>()?);
    }
    for (index, case) in cases.iter().enumerate() {
        let events = case.events as f64;
        let of = |figure: &dyn Fn(&Cost, &Cost) -> f64| -> Vec<f64> {
            costs.iter().map(|round| figure(&round[index], &round[0])).collect()
        };
        let wall = median(of(&|cost, _| cost.wall.as_secs_f64()));
        let cpu = median(of(&|cost, _| cost.cpu.as_secs_f64()));
        let each = of(&|cost, plain| (cost.wall.as_secs_f64() - plain.wall.as_secs_f64()) / events * 1e9);
        let (least, greatest) = each.iter().fold((f64::MAX, f64::MIN), |(l, g), &n| (l.min(n), g.max(n)));
        let lost: Option<Vec<f64>> =
            costs.iter().map(|round| round[index].lost.map(|lost| lost as f64)).collect();
        let lost = lost.map_or(String::new(), |lost| format!("{:.0}", median(lost)));
        let bytes = median(of(&|cost, _| cost.bytes as f64)) / events;
        println!(
            "| {} | {} | {events:.0} | {wall:.3} | {cpu:.3} | {:.2} | {least:.2} to {greatest:.2} | {lost} | {bytes:.2} |",
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
        Way::Counted(option) => {
            let options = [&["-q", "--libs=none", "--rate=0"], option.as_slice()].concat();
            tool::command(&options, &gmon, &case.work.program, &case.work.args)?
        }
        Way::Ours(options) => {
            let (trace, stats) =
                (format!("--trace={}", trace.display()), format!("--stats={}", stats.display()));
            let libraries = (!options.iter().any(|o| o.starts_with("--libs"))).then_some("--libs=none");
            let options = [&["-q", "--rate=0", &trace, &stats][..], libraries.as_slice(), options].concat();
            tool::command(&options, &gmon, &case.work.program, &case.work.args)?
        }
        Way::Uftrace => {
            let mut command = Command::new("uftrace");
            command.args(["record", "--no-pager", "--no-libcall", "-d"]).arg(&data).arg(&case.work.program);
            command
        }
        Way::Ltrace => {
            let mut command = Command::new("ltrace");
            let calls: Vec<String> = ALLOCATOR.iter().map(|name| format!("{name}@MAIN")).collect();
            command.args(["-f", "-e", &calls.join("+"), "-o"]).arg(&trace).arg(&case.work.program);
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
    let (mut lost, mut bytes) = (Some(0), std::fs::metadata(&trace).map_or(0, |file| file.len()));
    match case.way {
        Way::Ours(_) => {
            lost = Some(number(&statistics(folder)?, "/trace/lost")?);
        }
        Way::Uftrace => {
            let text = outcome.stderr_text();
            // "LOST 123 records"
            let lines = text.lines().filter(|line| line.to_ascii_lowercase().contains("lost"));
            let numbers =
                lines.flat_map(str::split_ascii_whitespace).filter_map(|word| word.parse::<u64>().ok());
            lost = Some(numbers.max().unwrap_or(0));
            bytes = std::fs::read_dir(&data).map_or(0, |entries| {
                entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).sum()
            });
        }
        Way::Ltrace => lost = None,
        Way::Plain | Way::Counted(_) => {}
    }
    Ok(Cost { wall: outcome.wall, cpu: outcome.cpu(), lost, bytes })
}
