//! The set-up time of real programs, which depends on the size of their code, and the cost of short commands, some of which run
//! many programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use gprofinject_skip as skip;
use gprofinject_tests::{run, tool};
use object::{Object, ObjectSegment, SegmentFlags};

use crate::measure::{Work, number, stats, stats_cached};

const LIMIT: Duration = Duration::from_secs(120);

/// Returns what a command prints, if it can be run.
pub(crate) fn answer(command: &str, args: &[&str]) -> Option<PathBuf> {
    let output = Command::new(command).args(args).output().ok().filter(|output| output.status.success())?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    path.canonicalize().ok().filter(|path| path.is_file())
}

/// Returns the number of bytes in the segments that contain code.
fn code_len(program: &Path) -> Result<u64> {
    let bytes = std::fs::read(program)?;
    let file = object::File::parse(&*bytes)?;
    let is_code =
        |flags| matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags.0 & object::elf::PF_X.0 != 0);
    let code = file.segments().filter(|segment| is_code(segment.flags()));
    Ok(code.map(|segment| segment.size()).sum())
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints the set-up time of large programs that do almost nothing, in the run that makes the plan and in the
/// next ones.
///
/// # Errors
/// A program cannot be run.
pub(crate) fn set_up(folder: &Path, rounds: usize) -> Result<()> {
    let source = folder.join("tiny.c");
    std::fs::write(&source, "int main(void) { return 0; }\n")?;
    let (source, assembly) = (source.display().to_string(), folder.join("tiny.s").display().to_string());
    let programs = [
        ("cc1", answer("gcc", &["-print-prog-name=cc1"]), vec!["-quiet", &source, "-o", &assembly]),
        ("python3", answer("python3", &["-c", "import sys; print(sys.executable)"]), vec!["-c", "pass"]),
        ("node", answer("node", &["-p", "process.execPath"]), vec!["-e", "0"]),
    ];
    let caches = folder.canonicalize()?.join("caches");
    println!(
        "\n| set-up | plan | functions | MB of code | ms | of that plan | agent | us/function | ms/MB |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|");
    for (name, program, args) in programs {
        let Some(program) = program else {
            skip::skipped(name, "it is not installed");
            continue;
        };
        let megabytes = code_len(&program)? as f64 / 1e6;
        let work = Work { program, args: args.iter().map(|&arg| arg.into()).collect(), stdin: None };
        // The run that keeps the plan is not measured.
        stats_cached(&caches, &work, folder)?;
        for (how, cached) in [("made", false), ("kept", true)] {
            let (mut total, mut plan, mut agent, mut functions) = (Vec::new(), Vec::new(), Vec::new(), 0);
            for _ in 0..rounds.max(3) {
                let (stats, _) =
                    if cached { stats_cached(&caches, &work, folder)? } else { stats(&work, &[], folder)? };
                let ms = |part: &str| anyhow::Ok(number(&stats, &format!("/setup_ns/{part}"))? as f64 / 1e6);
                total.push(ms("total")?);
                plan.push(ms("plan")?);
                agent.push(ms("agent")?);
                functions = number(&stats, "/functions/found")?;
            }
            let (total, plan, agent) = (median(total), median(plan), median(agent));
            let (each, per_megabyte) = (total * 1e3 / functions as f64, total / megabytes);
            println!(
                "| {name} | {how} | {functions} | {megabytes:.1} | {total:.0} | {plan:.0} | {agent:.0} | {each:.1} | {per_megabyte:.1} |"
            );
        }
    }
    Ok(())
}

/// The ways to run a command: the name, the options, and whether plans are kept; `None` for the command alone.
type Way = (&'static str, Option<(&'static [&'static str], bool)>);

/// Prints what profiling adds to commands that take milliseconds: to single programs, and to those that start many. All of their
/// processes are profiled.
///
/// # Errors
/// A program cannot be run.
pub(crate) fn short_commands(folder: &Path, rounds: usize) -> Result<()> {
    const WAYS: [Way; 4] = [
        ("plain", None),
        ("default", Some((&["-q"], false))),
        ("default, plans kept", Some((&["-q"], true))),
        ("--hooks none", Some((&["-q", "--hooks", "none"], true))),
    ];
    let caches = folder.canonicalize()?.join("caches");
    let folder = folder.join("tiny");
    std::fs::create_dir(&folder)?;
    let mut makefile = String::from("all: a.o b.o c.o d.o e.o f.o\n");
    for name in ["a", "b", "c", "d", "e", "f"] {
        std::fs::write(folder.join(format!("{name}.c")), format!("int {name}(void) {{ return 0; }}\n"))?;
        makefile += &format!("{name}.o: {name}.c\n\tgcc -c {name}.c -o {name}.o\n");
    }
    std::fs::write(folder.join("Makefile"), makefile)?;
    let at = folder.display().to_string();
    let git = format!(
        "cd {at} && git init -q && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one"
    );
    // Without git there is no row for it.
    Command::new("sh").args(["-c", &git]).output()?;
    let (file, object) = (folder.join("a.c").display().to_string(), folder.join("a.o").display().to_string());
    let hundred = "i=0; while [ $i -lt 100 ]; do /bin/true; i=$((i+1)); done";
    let fifty = "for i in {1..50}; do (: $i); done";
    let commands = [
        ("/bin/true", "/bin/true", vec![]),
        ("git log -1", "git", vec!["-C", &at, "log", "-1"]),
        ("gcc -c of a tiny file", "gcc", vec!["-c", &file, "-o", &object]),
        ("make -j2 of six", "make", vec!["-s", "-B", "-j2", "-C", &at]),
        ("100 /bin/true from sh", "sh", vec!["-c", hundred]),
        ("50 children of bash", "bash", vec!["-c", fifty]),
    ];
    println!("\n| command | how | wall ms | CPU ms | wall, alone = 1 |\n|---|---|---:|---:|---:|");
    for (name, program, args) in commands {
        // A shell has true as a command of its own.
        let Some(program) = answer("sh", &["-c", &format!("PATH=/bin:/usr/bin:$PATH; which {program}")])
        else {
            skip::skipped(name, &format!("{program} is not installed"));
            continue;
        };
        let args: Vec<String> = args.iter().map(|&arg| arg.into()).collect();
        let profile = folder.join("gmon.out");
        let command = |way: &Way| match way.1 {
            None => {
                let mut command = Command::new(&program);
                command.args(&args);
                Ok(command)
            }
            Some((options, false)) => tool::command(options, &profile, &program, &args),
            Some((options, true)) => tool::cached(&caches, options, &profile, &program, &args),
        };
        // The run that keeps the plans is not measured.
        run::run(command(&WAYS[2])?, None, LIMIT)?;
        let mut figures = WAYS.map(|_| (Vec::new(), Vec::new()));
        for _ in 0..rounds.max(3) {
            for (way, (wall, cpu)) in WAYS.iter().zip(&mut figures) {
                let outcome = run::run(command(way)?, None, LIMIT)?;
                wall.push(outcome.wall.as_secs_f64() * 1e3);
                cpu.push(outcome.cpu().as_secs_f64() * 1e3);
            }
        }
        let alone = median(figures[0].0.clone());
        for ((how, _), (wall, cpu)) in WAYS.into_iter().zip(figures) {
            let wall = median(wall);
            println!("| {name} | {how} | {wall:.1} | {:.1} | {:.1} |", median(cpu), wall / alone);
        }
    }
    Ok(())
}
