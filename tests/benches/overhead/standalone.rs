//! The cost of calls in standalone programs, compared with that of the same calls in a dynamic program.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use gprofinject_skip as skip;
use gprofinject_tests::{compile as compiler, tool};

use crate::calls::{compile, work};
use crate::libraries::side_by_side;

/// Fibonacci numbers, as in `data/fib.c`.
const GO: &str = "package main\n\
    import (\"fmt\"; \"os\"; \"strconv\")\n\
    //go:noinline\n\
    func fib(n int) int { if n < 2 { return n }; return fib(n-1) + fib(n-2) }\n\
    func main() { n, _ := strconv.Atoi(os.Args[1]); fmt.Println(fib(n)) }\n";

/// # Errors
/// A program cannot be compiled or run.
pub(crate) fn compare(folder: &Path, rounds: usize) -> Result<()> {
    const NUMBER: &str = "38";
    let mut works = Vec::new();
    for (name, file, flags) in [
        ("dynamic", "fib-dynamic", &["-O1"][..]),
        ("static", "fib-static", &["-O1", "-static"]),
        ("static-pie", "fib-static-pie", &["-O1", "-static-pie"]),
    ] {
        let program = folder.join(file);
        compile("fib.c", &program, flags)?;
        works.push((name, work(&program, &[NUMBER], None)));
    }
    if skip::have("go") {
        let (source, program) = (folder.join("fib.go"), folder.join("fib-go"));
        std::fs::write(&source, GO)?;
        let mut go = Command::new("go");
        go.args(["build", "-o"]).arg(&program).arg(&source).current_dir(folder);
        go.env("GOCACHE", tool::target_folder().join("go-cache")).env("GO111MODULE", "off");
        compiler::compile(go)?;
        works.push(("Go", work(&program, &[NUMBER], None)));
    } else {
        skip::skipped("standalone, Go", "no go");
    }
    side_by_side("fib", &works, folder, rounds)?;
    match tool::make_corpus(&[], &["O2", "static"]) {
        Ok(corpus) => {
            let script = tool::folder().join("data/bench.lua").display().to_string();
            let of = |kind: &str| work(&corpus.join(format!("lua-{kind}")), &[&script, "120"], None);
            side_by_side("lua", &[("dynamic", of("O2")), ("static", of("static"))], folder, rounds)
        }
        Err(error) => {
            skip::skipped("standalone, lua", &format!("no corpus: {error:#}"));
            Ok(())
        }
    }
}
