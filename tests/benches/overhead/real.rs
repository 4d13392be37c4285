//! The set-up time of real programs, which depends on the size of their code; the cost of short commands, some of which run
//! many programs; and the cost of real programs that work for some seconds.

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
    let commands = commands.map(|(name, program, args)| (name, found(program), args));
    let commands =
        commands.map(|(name, program, args)| (name, program, args.iter().map(|&arg| arg.into()).collect()));
    by_turns(&commands, &WAYS, (&folder, &caches), rounds)
}

/// Returns the path of a program. A shell has some, such as true, as commands of its own.
fn found(program: &str) -> Option<PathBuf> {
    answer("sh", &["-c", &format!("PATH=/bin:/usr/bin:$PATH; which {program}")])
}

/// Returns a command with these arguments.
fn with(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// A command: its name in the table, its program if that is installed, and its arguments.
type Row<'r> = (&'r str, Option<PathBuf>, Vec<String>);

/// Runs commands in different ways by turns, the first of which is the command alone, and prints a table of the medians. The folders
/// are for the results and the kept plans.
fn by_turns(commands: &[Row], ways: &[Way], (folder, caches): (&Path, &Path), rounds: usize) -> Result<()> {
    println!("\n| command | how | wall ms | CPU ms | wall, alone = 1 | CPU |\n|---|---|---:|---:|---:|---:|");
    for (name, program, args) in commands {
        let Some(program) = program else {
            skip::skipped(name, "it is not installed");
            continue;
        };
        let profile = folder.join("gmon.out");
        // The plans of all programs together, and of rustc in several ways, are more than are kept.
        std::fs::create_dir_all(caches)?;
        let caches = tempfile::tempdir_in(caches)?;
        let command = |way: &Way| match way.1 {
            None => {
                let mut command = Command::new(program);
                command.args(args);
                Ok(command)
            }
            Some((options, false)) => tool::command(options, &profile, program, args),
            Some((options, true)) => {
                tool::cached(caches.path(), options, &profile, program, args).map(|mut command| {
                    command.env("GPROFINJECT_CACHE_SIZE", "8G");
                    command
                })
            }
        };
        // The first runs, which keep plans, images and the arenas of libraries, are not measured.
        for way in ways.iter().filter(|way| way.1.is_some_and(|(_, is_kept)| is_kept)) {
            for _ in 0..2 {
                run::run(command(way)?, None, LIMIT)?;
            }
        }
        let mut figures: Vec<_> = ways.iter().map(|_| (Vec::new(), Vec::new())).collect();
        let mut alone = None;
        for _ in 0..rounds.max(3) {
            for ((how, way), (wall, cpu)) in ways.iter().zip(&mut figures) {
                let outcome = run::run(command(&(how, *way))?, None, LIMIT)?;
                wall.push(outcome.wall.as_secs_f64() * 1e3);
                cpu.push(outcome.cpu().as_secs_f64() * 1e3);
                let ended = (outcome.code(), outcome.stdout_text());
                let alone = alone.get_or_insert_with(|| ended.clone());
                anyhow::ensure!(*alone == ended, "{name}, {how}: {ended:?}, alone {alone:?}");
            }
        }
        let mut alone = None;
        for ((how, _), (wall, cpu)) in ways.iter().zip(figures) {
            let (wall, cpu) = (median(wall), median(cpu));
            let alone = alone.get_or_insert((wall, cpu));
            println!(
                "| {name} | {how} | {wall:.1} | {cpu:.1} | {:.1} | {:.1} |",
                wall / alone.0,
                cpu / alone.1
            );
        }
    }
    Ok(())
}

/// Prints what profiling adds to programs that nobody here wrote: runtimes with generated code, compilers, a browser. All of their
/// processes, and all libraries but the C library, are hooked.
///
/// # Errors
/// A program cannot be run, or prints something else than alone.
pub(crate) fn programs(folder: &Path, rounds: usize) -> Result<()> {
    const WAYS: [Way; 3] = [
        ("plain", None),
        ("default, plans kept", Some((&["-q"], true))),
        ("--hooks entry, plans kept", Some((&["-q", "--hooks", "entry"], true))),
    ];
    let folder = folder.canonicalize()?;
    let caches = folder.join("caches");
    let data = tool::folder().join("data/programs");
    let at = |name: &str| data.join(name).display().to_string();
    let out = |name: &str| folder.join(name).display().to_string();
    let mut classes = String::new();
    for class in 0..40 {
        classes += &format!("class C{class} {{\n");
        for method in 0..40 {
            classes += &format!(
                "    static int f{method}(int a, java.util.List<String> l) {{ int s = a; for (String x : l) {{ s += x.length() * {method}; \
                 var q = new java.util.HashMap<String, Integer>(); q.put(x, s); s += q.values().stream().mapToInt(i -> i).sum(); }} \
                 return s; }}\n"
            );
        }
        classes += "}\n";
    }
    std::fs::write(folder.join("Classes.java"), classes)?;
    let mut modules = String::new();
    for module in 0..150 {
        modules += &format!(
            "pub mod m{module} {{ use std::collections::*; pub fn f(a: &[u32]) -> u32 {{ let mut h = HashMap::new(); let mut b = BTreeMap::new(); \
             for &x in a {{ *h.entry(x ^ {module}).or_insert(0u32) += x; b.insert(x, vec![x; 3]); }} let mut v: Vec<_> = h.into_iter().collect(); \
             v.sort(); v.iter().map(|p| p.1).sum::<u32>() + b.values().flatten().sum::<u32>() }} }}\n"
        );
    }
    std::fs::write(folder.join("modules.rs"), modules)?;
    std::fs::write(folder.join("page.html"), "<h1>hello</h1><script>document.body.append(2 + 2)</script>\n")?;
    if let Some(javac) = found("javac") {
        run::run(with(&javac, &["-d", &out("classes"), &at("Deep.java")]), None, LIMIT)?;
    }
    let rustc = answer("rustup", &["which", "rustc"]).or_else(|| found("rustc"));
    let arguments = |args: &[&str]| args.iter().map(|&arg| arg.to_owned()).collect::<Vec<_>>();
    let commands = [
        ("LuaJIT", found("luajit"), arguments(&[&at("work.lua")])),
        ("PyPy", found("pypy3"), arguments(&[&at("work.py")])),
        ("CPython", found("python3"), arguments(&[&at("work.py")])),
        ("Ruby", found("ruby"), arguments(&[&at("work.rb")])),
        ("PHP", found("php"), arguments(&[&at("work.php")])),
        ("Erlang", found("escript"), arguments(&[&at("work.escript")])),
        ("node", found("node"), arguments(&[&at("work.js")])),
        (
            "Java, 20 StackOverflowErrors",
            found("java"),
            arguments(&["-cp", &out("classes"), "Deep", "overflow"]),
        ),
        (
            "Java, File.exists below 3,000 frames",
            found("java"),
            arguments(&["-cp", &out("classes"), "Deep", "exists"]),
        ),
        ("javac", found("javac"), arguments(&["-d", &out("classes"), &out("Classes.java")])),
        (
            "rustc -O",
            rustc,
            arguments(&["-O", "--crate-type", "lib", "-o", &out("m.rlib"), &out("modules.rs")]),
        ),
        (
            "ffmpeg, libx264",
            found("ffmpeg"),
            arguments(&[
                "-v",
                "error",
                "-f",
                "lavfi",
                "-i",
                "testsrc=duration=4:size=640x360",
                "-c:v",
                "libx264",
                "-threads",
                "2",
                "-f",
                "null",
                "-",
            ]),
        ),
        (
            "Chromium, a picture of a page",
            found("chromium"),
            arguments(&[
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                &format!("--user-data-dir={}", out("user")),
                &format!("--screenshot={}", out("page.png")),
                &format!("file://{}", out("page.html")),
            ]),
        ),
    ];
    by_turns(&commands, &WAYS, (&folder, &caches), rounds.min(5))
}
