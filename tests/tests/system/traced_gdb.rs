//! Traces compared with the entries at which gdb stops: a breakpoint at the first instruction of each function of a program that
//! is optimised and has no hooks, and the depth of its stack there.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gprofinject_skip as skip;
use gprofinject_tests::place::Place;
use gprofinject_tests::traced::{Line, lines, shown};
use gprofinject_tests::{generate, run, tool};

gprofinject_tests::trials! {
    together:
        bzip2,
        lua;
}

/// An entry: how many calls of the program's functions have frames on the stack, and the function.
type Entry = (usize, String);

/// Returns the program's functions, as `nm` lists them: `ADDRESS NAME`. `_start` is no call.
fn functions(program: &Path) -> String {
    let output = Command::new("nm").arg(program).output().unwrap();
    assert!(output.status.success(), "nm");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let function = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        [address, "t" | "T", name] if name != "_start" => Some(format!("{address} {name}\n")),
        _ => None,
    };
    text.lines().filter_map(function).collect()
}

/// Returns the entries from main on. What comes before is called by the dynamic linker or the C library.
fn from_main(entries: Vec<Entry>) -> Vec<Entry> {
    let mut entries = entries;
    let main = entries.iter().position(|(_, name)| name == "main").unwrap();
    entries.drain(..main);
    // What runs after main is not called by it.
    let end = entries.iter().position(|(_, name)| name == "__do_global_dtors_aux").unwrap_or(entries.len());
    entries.truncate(end);
    entries
}

/// Runs the program under gdb, which stops at each entry.
fn theirs(place: &Place, program: &Path, args: &[&str]) -> Vec<Entry> {
    let [entries, names] = ["entries", "functions"].map(|name| place.path(name));
    std::fs::write(&names, functions(program)).unwrap();
    let mut command = Command::new("gdb");
    command.args(["-nx", "-batch", "-x"]).arg(tool::folder().join("data/entries.py")).arg("--args").arg(program);
    command.args(args).current_dir(place.folder.path()).env("ENTRIES", &entries).env("FUNCTIONS", &names);
    // Each entry takes gdb half a millisecond.
    let outcome = run::run(command, None, Duration::from_secs(300)).unwrap();
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    let entry = |line: &str| {
        let mut words = line.split(' ').skip(1);
        (words.next().unwrap().parse().unwrap(), words.next().unwrap().to_owned())
    };
    std::fs::read_to_string(&entries).unwrap().lines().map(entry).collect()
}

/// Traces the program. A tail call has the frame of the call that it is a part of, so it is as deep as that one.
fn ours(place: &Place, program: &Path, args: &[&str]) -> Vec<Entry> {
    let program = program.to_str().unwrap();
    let outcome = place.run(&[&["-q", "--trace", "trace", "--libs", "none", program], args].concat());
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    // How deep each open call is, and whether it has a frame of its own.
    let mut open: Vec<(usize, bool)> = Vec::new();
    let mut entries = Vec::new();
    for Line { depth, text, .. } in lines(&shown(place, "trace", &["--no-demangle", "--fields", "tid"])) {
        if let Some((name, rest)) = text.split_once("()").filter(|_| !text.starts_with('}')) {
            while open.last().is_some_and(|&(other, _)| other >= depth) {
                open.pop();
            }
            let is_tail = rest.contains("tail call");
            let frames = open.iter().filter(|&&(_, has_frame)| has_frame).count();
            open.push((depth, !is_tail));
            entries.push((frames - usize::from(is_tail), name.to_owned()));
        }
    }
    entries
}

/// Compares all entries of the corpus's program, which is copied to where it runs.
fn compare(name: &str, prepare: impl Fn(&Place), args: &[&str]) {
    if !skip::have_for(&format!("gdb: {name}"), &["gdb", "nm"]) {
        return;
    }
    let corpus = match tool::corpus() {
        Ok(corpus) => corpus,
        Err(error) => return skip::skipped(&format!("gdb: {name}"), &format!("no corpus: {error:#}")),
    };
    let program = corpus.join(format!("{name}-O2"));
    let place = Place::new();
    prepare(&place);
    let [theirs, ours] = [theirs, ours].map(|run| {
        let entries = from_main(run(&place, &program, args));
        prepare(&place);
        entries
    });
    if let Some(at) = (0..theirs.len().max(ours.len())).find(|&at| theirs.get(at) != ours.get(at)) {
        let around = |entries: &[Entry]| {
            format!("{:?}", &entries[at.saturating_sub(3).min(entries.len())..entries.len().min(at + 5)])
        };
        panic!("{name}: entry {at}:\ngdb  {}\nours {}", around(&theirs), around(&ours));
    }
    // The number of compared entries is a part of the result.
    println!("| {name}-O2 | gdb | {} | equal |", ours.len());
}

fn bzip2() {
    let prepare = |place: &Place| {
        std::fs::write(place.path("data"), generate::compressible(4000)).unwrap();
    };
    compare("bzip2", prepare, &["-kf", "data"]);
}

fn lua() {
    // Errors that are caught, and coroutines, which are jumps (longjmp) between calls on one stack.
    const SCRIPT: &str = "print(pcall(error, 'e'), pcall(function() error({}) end))\n\
        local w = coroutine.wrap(function() for i = 1, 9 do coroutine.yield(i) end end) for i = 1, 9 do w() end\n\
        print(#('x'):rep(10), coroutine.close(coroutine.create(print)))";
    compare("lua", |place| std::fs::write(place.path("a.lua"), SCRIPT).unwrap(), &["a.lua"]);
}
