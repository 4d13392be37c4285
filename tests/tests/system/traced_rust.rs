//! Traces of a Rust program with threads, channels and caught panics, compared with the logs that its threads keep of their calls.

use std::collections::BTreeMap;
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::place::Place;
use gprofinject_tests::tool;
use gprofinject_tests::traced::{Line, lines, shown};

gprofinject_tests::trials! {
    together:
        threads_and_panics;
}

const NAMES: [&str; 8] = ["add", "greet", "paint", "fails", "between", "catches", "handle", "worker"];

/// Returns the logs of all threads, with the ends of the calls that a panic has left: they say nothing themselves.
fn logs(place: &Place) -> Vec<Vec<String>> {
    let mut logs = Vec::new();
    for number in 0.. {
        let Ok(text) = std::fs::read_to_string(place.path(&format!("log.{number}"))) else { break };
        let (mut log, mut open): (Vec<String>, Vec<&str>) = (Vec::new(), Vec::new());
        for line in text.lines() {
            match line.split_once(' ').unwrap() {
                (">", name) => open.push(name),
                (_, name) => {
                    while open.last() != Some(&name) {
                        log.push(format!("! {}", open.pop().unwrap()));
                    }
                    open.pop();
                }
            }
            log.push(line.to_owned());
        }
        assert!(open.is_empty(), "{open:?}");
        logs.push(log);
    }
    logs.sort();
    logs
}

/// Returns what happens in the program's own functions on each thread, in the words of the logs.
fn happenings(lines: &[Line]) -> Vec<Vec<String>> {
    let mut all: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for Line { tid, text, .. } in lines {
        let ends = text.starts_with('}');
        let name = if ends { text.split("/* ").nth(1).unwrap() } else { text };
        let name = name.split([' ', '(', ':', ';']).next().unwrap();
        if !NAMES.contains(&name) {
            continue;
        }
        let here = all.entry(*tid).or_default();
        if !ends {
            here.push(format!("> {name}"));
        }
        if ends || !text.ends_with('{') && !text.contains("{ /*") {
            here.push(format!("{} {name}", if text.contains("left by") { '!' } else { '<' }));
        }
    }
    let mut all: Vec<_> = all.into_values().collect();
    all.sort();
    all
}

fn threads_and_panics() {
    if !skip::have_for("traces of Rust", &["rustc"]) {
        return;
    }
    let source = std::fs::read_to_string(tool::folder().join("data/jobs.rs")).unwrap();
    for level in ["opt-level=0", "opt-level=3"] {
        for arguments in [&[][..], &["--args", "auto"]] {
            let place = Place::new();
            std::fs::write(place.path("jobs.rs"), &source).unwrap();
            let mut command = Command::new("rustc");
            command.args(["--edition=2021", "-g", "-C", level, "-o", "jobs", "jobs.rs"]).current_dir(place.folder.path());
            let compiled = command.output().unwrap();
            assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
            let options = ["-q", "--stats=stats", "--trace", "trace"];
            let outcome = place.run(&[&options[..], arguments, &["./jobs", "60"]].concat());
            assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
            let (lines, logs) = (lines(&shown(&place, "trace", &["--fields", "tid"])), logs(&place));
            assert_eq!(logs.len(), 4);
            assert_eq!(happenings(&lines), logs, "{level} {arguments:?}");
            let stats: serde_json::Value =
                serde_json::from_slice(&std::fs::read(place.path("stats")).unwrap()).unwrap();
            assert_eq!(stats["trace"]["calls"], stats["calls"], "{level}");
            println!("| {level} {arguments:?} | {} calls | equal |", stats["calls"]);
            if !arguments.is_empty() {
                shows_arguments(&lines, level);
            }
        }
    }
}

/// The arguments follow from the source: see how `main` makes the jobs.
fn shows_arguments(lines: &[Line], level: &str) {
    let begun = |call: &str| lines.iter().filter(|line| line.text.starts_with(call)).count();
    assert_eq!((begun("paint(c=Green, bright=true)"), begun("paint(c=Red, bright=false)")), (1, 1), "{level}");
    assert_eq!(begun("add(a=-3, b=1099511627776)"), 1, "{level}");
    // Jobs are numbered n in 0..60, for each of three threads i: (n + i) % 3 says which one it is, so each kind comes once for
    // each n.
    for n in 0..60 {
        assert_eq!((begun(&format!("fails(n={n})")), begun(&format!("between(n={n})"))), (1, 1), "{level}: {n}");
        assert_eq!(begun(&format!("add(a={}, b=7)", n - 5)), 1, "{level}: {n}");
    }
    for name in ["a", "hello", "wörld"] {
        let shown = begun(&format!("greet(name=\"{name}\", n=3)"));
        assert_eq!(shown, 20, "{level}: {name}");
    }
}
