//! What `go tool pprof` reads in our files.

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use gmon_run::{Node, Recording};
use gprofinject_skip::{have, skipped};
use support::{CALLS, SELF_NS, counted, example, sampled};

/// Whether there is a `go tool pprof`. If not, the test is reported as skipped.
fn have_pprof(test: &str) -> bool {
    let there = have("go")
        && Command::new("go").args(["tool", "pprof", "-h"]).output().is_ok_and(|output| {
            String::from_utf8_lossy(&output.stderr).contains("pprof")
                && !output.stderr.starts_with(b"go: no such tool")
        });
    if !there {
        skipped(test, "no go tool pprof");
    }
    there
}

/// Returns what `go tool pprof` prints about measured times.
fn pprof(measured: &Recording, options: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gmon.pb.gz");
    std::fs::write(&file, measured.write()).expect("a file");
    run(folder.path(), options, &file)
}

fn run(folder: &Path, options: &[&str], file: &Path) -> String {
    let mut command = Command::new("go");
    // Neither the network nor the user's files play a part.
    command.env("PPROF_TMPDIR", folder).env("PPROF_BINARY_PATH", folder).env("HOME", folder);
    let output = command.args(["tool", "pprof"]).args(options).arg(file).output().expect("go runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{options:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the flat values that `-top` prints, by function, in nanoseconds or as plain numbers.
fn flat(text: &str) -> BTreeMap<String, u64> {
    let lines = text.lines().skip_while(|line| !line.trim_start().starts_with("flat"));
    let value = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let value = words[0].trim_end_matches("ns").parse().unwrap_or_else(|_| panic!("a value: {line}"));
        (words[5..].join(" "), value)
    };
    lines.skip(1).map(value).collect()
}

fn expected(functions: &[(&str, u64)]) -> BTreeMap<String, u64> {
    functions.iter().map(|&(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the words of each line, without the labels that are the same for all samples.
fn words(text: &str) -> Vec<String> {
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let is_other_label = |line: &str| line.starts_with("pid: 100") || line.starts_with("program: prog");
    words.filter(|line| !line.is_empty() && !line.starts_with("---") && !is_other_label(line)).collect()
}

const ALL: &[&str] = &["-nodefraction=0", "-edgefraction=0", "-unit=ns"];

#[test]
fn calls_and_times_by_function() {
    if !have_pprof("calls_and_times_by_function") {
        return;
    }
    for paths in [false, true] {
        let mut measured = example(paths);
        measured.nodes.truncate(5);
        let text = pprof(&measured, &[&["-top", "-sample_index=calls"], ALL].concat());
        assert_eq!(flat(&text), expected(&CALLS), "{text}");
        // The time is what is shown if nothing else is asked for.
        let text = pprof(&measured, &[&["-top"], ALL].concat());
        assert_eq!(flat(&text), expected(&SELF_NS), "{text}");
        assert_eq!(words(&text)[..3], ["File: prog", "Build ID: ab01ff", "Type: time"]);
        let text = pprof(&measured, &[&["-top", "-sample_index=samples"], ALL].concat());
        let mut samples = expected(&[("parse(int)", 5), ("libc_read", 1), ("work", 900)]);
        // pprof prints functions without a value of their own if they have callees with one.
        samples.insert("main".to_owned(), 0);
        let mut read = flat(&text);
        read.entry("main".to_owned()).or_insert(0);
        // One sample of the function is in no path.
        assert_eq!(read.remove("[path not known]"), paths.then_some(0), "{text}");
        assert_eq!(read, samples, "{text}");
    }
}

#[test]
fn traces() {
    if !have_pprof("traces") {
        return;
    }
    let head = ["File: prog", "Build ID: ab01ff", "Type: time"];
    let mut paths = example(true);
    // As many as in the paths.
    (paths.hits[3].samples, paths.rows[3].samples) = (899, 899);
    let text = words(&pprof(&paths, &["-traces"]));
    assert_eq!(text[..3], head);
    let expected = [
        "thread: prog 100",
        "1ms main",
        "thread: prog 100",
        "20ms parse(int)",
        "main",
        "thread: prog 100",
        "300ms libc_read",
        "parse(int)",
        "main",
        "thread: worker 101",
        "2s work",
        "thread: worker 101",
        "2s work",
        "work",
        "thread: worker 101",
        "0 [other calls]",
        "work",
        "work",
    ];
    assert_eq!(text[5..], expected);

    // Without paths there are arcs.
    let mut arcs = example(false);
    arcs.hits.clear();
    arcs.rows.iter_mut().for_each(|row| row.samples = 0);
    let text = words(&pprof(&arcs, &["-traces"]));
    let expected = [
        "thread: prog 100",
        "1ms main",
        "thread: prog 100",
        "20ms parse(int)",
        "main",
        "thread: prog 100",
        "300ms libc_read",
        "parse(int)",
        "thread: worker 101",
        "2s work",
        "thread: worker 101",
        "2s work",
        "work",
    ];
    assert_eq!(text[5..], expected);
}

#[test]
fn threads_are_tags() {
    if !have_pprof("threads_are_tags") {
        return;
    }
    for paths in [false, true] {
        let text = pprof(&example(paths), &["-tags", "-unit=ms"]);
        let text: Vec<_> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let all = |value: &str| format!("4321.0ms ( 100%): {value}");
        for (label, values) in [
            ("pid", vec![all("100")]),
            ("program", vec![all("prog")]),
            (
                "thread",
                ["4000.0ms (92.57%): worker 101", "321.0ms ( 7.43%): prog 100"].map(str::to_owned).to_vec(),
            ),
        ] {
            let head = format!("{label}: Total 4321.0ms");
            let at =
                text.iter().position(|line| *line == head).unwrap_or_else(|| panic!("{label}: {text:?}"));
            assert_eq!(text[at + 1..][..values.len()], values, "{label}");
        }
        let text = pprof(&example(paths), &[&["-top", "-tagfocus=thread=worker"], ALL].concat());
        assert_eq!(flat(&text)["work"], 4_000_000_000);
        assert!(!text.contains("main"), "{text}");
    }
}

/// A run without measured times shows CPU time, and has calls.
#[test]
fn counted_runs() {
    if !have_pprof("counted_runs") {
        return;
    }
    let text = pprof(&counted(), &[&["-top"], ALL].concat());
    assert_eq!(words(&text)[2], "Type: cpu");
    let cpu = [("parse(int)", 5 * 4_000_000), ("libc_read", 4_000_000), ("work", 900 * 4_000_000)];
    assert_eq!(
        flat(&text).into_iter().filter(|&(_, ns)| ns > 0).collect::<BTreeMap<_, _>>(),
        expected(&cpu),
        "{text}"
    );
    // Code in no known file has samples too, of each program.
    let mut elsewhere = counted();
    elsewhere.programs[0].elsewhere = 7;
    let text = pprof(&elsewhere, &[&["-top", "-sample_index=samples"], ALL].concat());
    assert_eq!(flat(&text).get("[elsewhere]"), Some(&7), "{text}");
    assert_eq!(flat(&text).values().sum::<u64>(), 906 + 7, "{text}");
    let text = words(&pprof(&elsewhere, &["-raw"])).join("\n");
    assert!(text.contains("0 7 28000000: 5\npid:[100] program:[prog]"), "{text}");
    assert_eq!(Recording::read(&elsewhere.write()).expect("our own file"), elsewhere);
    let text = pprof(&counted(), &[&["-top", "-sample_index=calls"], ALL].concat());
    assert_eq!(flat(&text), expected(&CALLS), "{text}");
    // The calls of both call sites are one edge.
    let text =
        words(&pprof(&counted(), &["-peek=parse", "-sample_index=calls", "-nodefraction=0"])).join("\n");
    assert!(text.contains("10 20.00% | main"), "{text}");
}

/// The samples of a run without measured times have their stacks, and all samples are in one.
#[test]
fn sampled_stacks() {
    if !have_pprof("sampled_stacks") {
        return;
    }
    let run = sampled();
    let samples = |options: &[&str]| pprof(&run, &[options, &["-sample_index=samples"], ALL].concat());
    let flat_samples = flat(&samples(&["-top"]));
    let known = [("parse(int)", 5), ("libc_read", 1), ("work", 900), ("main", 0), ("[path not known]", 0)];
    assert_eq!(flat_samples, expected(&known));
    let text = samples(&["-top", "-cum"]);
    let cumulative = |name: &str| {
        let line = text.lines().find(|line| line.ends_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        let word = line.split_whitespace().nth(3).map_or("", |word| word.trim_end_matches("ns"));
        word.parse::<u64>().unwrap_or_else(|_| panic!("{line}"))
    };
    // A recursive function counts once in each stack.
    assert_eq!(
        ["main", "parse(int)", "libc_read", "work", "[path not known]"].map(cumulative),
        [5, 6, 1, 900, 901]
    );
    let text = words(&samples(&["-traces"])).join("\n");
    for trace in [
        "1ns libc_read\nparse(int)\nmain",
        "90ns work\nwork\n[path not known]",
        "810ns work\n[path not known]",
    ] {
        assert!(text.contains(trace), "{trace}\n{text}");
    }
    let text = pprof(&run, &[&["-top", "-sample_index=calls"], ALL].concat());
    let calls: BTreeMap<_, _> = flat(&text).into_iter().filter(|&(_, calls)| calls > 0).collect();
    assert_eq!(calls, expected(&CALLS), "{text}");
    // Where times were measured, the file is the same with and without stacks, apart from the stacks themselves.
    let without = Recording { stacks: Vec::new(), ..example(true) };
    assert_eq!(pprof(&example(true), &["-traces"]), pprof(&without, &["-traces"]));
}

/// Modules, lines, names in the symbol table and the period.
#[test]
fn everything_else() {
    if !have_pprof("everything_else") {
        return;
    }
    let text = words(&pprof(&example(false), &["-raw"])).join("\n");
    for line in [
        "PeriodType: cpu nanoseconds",
        "Period: 4000000",
        "Time: 2023-11-14 22:13:20 +0000 UTC",
        "Duration: 5s",
        "calls/count samples/count cpu/nanoseconds time/nanoseconds[dflt]",
        "10 0 0 20000000: 2 1",
        "0 5 20000000 0: 2",
        "2: 0x1100 M=1 parse(int) /src/prog.c:20 s=20(_Z5parsei)",
        "3: 0x2100 M=2 libc_read :0 s=0",
        "1: 0x1000/0x2000/0x1000 /usr/bin/prog ab01ff [FN][FL][LN]",
        "2: 0x2000/0x3000/0x2000 /usr/lib/libc.so.6 c0de [FN]",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    pprof(&Recording::default(), &["-raw"]);
}

/// Paths of which the middle is left out are read as well.
#[test]
fn deep_paths() {
    if !have_pprof("deep_paths") {
        return;
    }
    let mut deep = example(true);
    deep.nodes = (0..20_000_u32)
        .map(|index| Node { parent: index.checked_sub(1), function: Some(0), self_ns: 1, ..Node::default() })
        .collect();
    let text = pprof(&deep, &[&["-top"], ALL].concat());
    assert_eq!(flat(&text)["main"], 20_000);
    assert_eq!(flat(&text)["[frames left out]"], 0);
}
