//! lua, sqlite's speedtest1 and bzip2, linked statically: every arc of their own functions is callgrind's.
//!
//! The functions of the C library are not compared: at the start they examine the processor, and valgrind's differs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gprofinject_skip as skip;
use gprofinject_tests::elf::Program;
use gprofinject_tests::tool::{self, Hooks};
use gprofinject_tests::{build, callgrind, check, compile, generate, gprofdata, normalise, run};

gprofinject_tests::trials! {
    together:
        lua_is_callgrinds,
        speedtest1_is_callgrinds,
        bzip2_is_callgrinds;
}

fn lua_is_callgrinds() {
    let script = tool::folder().join("data/bench.lua");
    compare("lua", &[&script.display().to_string(), "3"], None);
}

fn speedtest1_is_callgrinds() {
    compare("speedtest1", &["--size", "2", ":memory:"], None);
}

fn bzip2_is_callgrinds() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::write(&data, generate::compressible(300_000)).unwrap();
    compare("bzip2", &["-c"], Some(&data));
}

/// Returns a copy of a program of the corpus in which all names are shown.
fn program(folder: &Path, corpus: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    compile::copy(&corpus.join(name), &path).unwrap();
    build::show_all(&path).unwrap();
    path
}

fn compare(name: &str, args: &[&str], stdin: Option<&Path>) {
    if !callgrind::available() {
        return skip::skipped(name, "no valgrind");
    }
    let corpus = match tool::make_corpus(&[], &["O2", "static"]) {
        Ok(corpus) => corpus,
        Err(error) => return skip::skipped(name, &format!("no corpus: {error:#}")),
    };
    let folder = tempfile::tempdir().unwrap();
    let path = program(folder.path(), &corpus, &format!("{name}-static"));
    let dynamic = Program::read(&program(folder.path(), &corpus, &format!("{name}-O2"))).unwrap();
    let elf = Program::read(&path).unwrap();
    // A name selects all functions that have it, and the C library has some of lua's names.
    let is_one = |name: &String| elf.functions().filter(|function| function.names.contains(name)).count() == 1;
    let is_own = |name: &String| name != "_start" && dynamic.named(name).is_some() && is_one(name);
    let (mut own, mut others) = (Vec::new(), BTreeSet::new());
    for function in elf.functions().filter(|function| function.parent.is_none()) {
        match function.names.iter().find(|name| is_own(name)) {
            Some(name) => own.push(name.clone()),
            None => _ = others.insert(function.address),
        }
    }
    let start = elf.named("_start").map(|start| start.address);
    others.retain(|address| Some(*address) != start);
    assert!(own.len() > 50, "{name}: {} functions", own.len());
    let args: Vec<String> = args.iter().map(ToString::to_string).collect();
    let (counted, theirs) = callgrind::run(&path, &args, stdin).unwrap();
    assert_eq!(theirs.code(), 0, "{}", theirs.stderr_text());
    let object = counted.object(&path).unwrap();
    let mut failures = Vec::new();
    for hooks in Hooks::ALL {
        let expected = normalise::normalise(&counted, object, &elf, hooks).unwrap();
        let expected = expected.with_hooks_but_in(&others, hooks);
        let gmon = folder.path().join("gmon.out");
        let mut options = vec!["-q", hooks.option()];
        options.extend(own.iter().flat_map(|name| ["-I", name.as_str()]));
        let command = tool::command(&options, &gmon, &path, &args).unwrap();
        let ours = run::run(command, stdin, Duration::from_secs(300)).unwrap();
        assert_eq!(ours.code(), 0, "{}", ours.stderr_text());
        // speedtest1 prints times.
        assert!(name == "speedtest1" || ours.stdout == theirs.stdout, "{name} {hooks:?}");
        let mut profile = gprofdata::read(&gmon).unwrap();
        // The functions that are called through the agent are hooked as well.
        profile.arcs.retain(|(_, callee), _| !others.contains(callee));
        let report = check::compare(&expected, &profile, &elf).unwrap();
        println!("{name} {hooks:?}: {report}");
        if !report.is_equal() {
            failures.push(format!("{name} {hooks:?}:\n{report}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
