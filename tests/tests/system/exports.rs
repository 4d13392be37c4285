//! What other tools read in exports, and in the tables of `gmon`: the numbers are those of gprof, and the same in every format.

mod readers;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::{compile, tool, view};
use serde_json::Value;

use self::readers::{callgrind_instructions, firefox, gprof_arcs, gprof_flat, number, pprof_top, rounds_to, text};

gprofinject_tests::trials! {
    together:
        tables_are_those_of_gprof,
        tables_of_lua_are_those_of_gprof,
        tables_of_the_whole_process_are_those_of_gprof,
        callgrind_annotate_reads_it,
        gprof2dot_reads_it,
        pprof_reads_it,
        stacks_of_pairs_and_of_paths,
        graphviz_reads_it,
        counted_instructions,
        a_planted_slowdown,
        damaged_files,
        places_of_exports;
}

/// Recursion, a cycle, two functions of one name, inlined code, and a library that calls back.
const MAIN: &str = r#"
#include <stdlib.h>
#define NOINLINE __attribute__((noinline))
int low(int (*)(int), int);
NOINLINE int odd(int n);
NOINLINE int even(int n) { return n == 0 ? 1 : odd(n - 1); }
NOINLINE int odd(int n) { return n == 0 ? 0 : even(n - 1); }
NOINLINE long fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
static inline long spin(long n) {
    volatile long sum = 0;
    for (long i = 0; i < n; i++)
        sum += i;
    return sum;
}
NOINLINE long burn(long n) { return spin(n * 1000); }
NOINLINE int back(int x) { return x * 2; }
long two(int), one(int);
int main(int argc, char **argv) {
    long sum = fib(20) + burn(argc > 1 ? atol(argv[1]) : 300000);
    for (int i = 0; i < 7; i++)
        sum += one(i) + two(i) + even(i) + low(back, i);
    return sum == 42;
}
"#;
const TWO: &str = r#"
#define NOINLINE __attribute__((noinline))
long burn(long);
static NOINLINE long same(int n) { return burn(n * 30 + 1) + 1; }
NOINLINE long NAME(int n) { return same(n) + same(n + 1); }
"#;
const LOW: &str = r#"
__attribute__((noinline)) static int inner(int (*f)(int), int x) { return f(x) + f(x + 1); }
__attribute__((noinline)) int low(int (*f)(int), int x) { return inner(f, x) + inner(f, x + 2); }
"#;

/// A program that was profiled with these options, in a folder of its own.
struct Profiled {
    folder: tempfile::TempDir,
    program: PathBuf,
}

fn gcc(folder: &Path, args: &[&str]) {
    let mut gcc = Command::new("gcc");
    gcc.current_dir(folder).args(["-O1", "-g", "-fno-optimize-sibling-calls"]).args(args);
    compile::compile(gcc).unwrap();
}

fn program(folder: &Path) -> PathBuf {
    for (name, source) in [("main.c", MAIN), ("two.c", TWO), ("low.c", LOW)] {
        std::fs::write(folder.join(name), source).unwrap();
    }
    gcc(folder, &["-fPIC", "-shared", "low.c", "-o", "liblow.so"]);
    gcc(folder, &["-c", "-DNAME=one", "two.c", "-o", "one.o"]);
    gcc(folder, &["-c", "-DNAME=two", "two.c", "-o", "two.o"]);
    gcc(folder, &["main.c", "one.o", "two.o", "-L.", "-llow", "-Wl,-rpath,$ORIGIN", "-o", "prog"]);
    folder.join("prog")
}

fn profiled(options: &[&str]) -> Profiled {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path());
    let mut command = Command::new(tool::gprofinject().unwrap());
    command.args(["-q", "--no-cache"]).args(options).arg(&program).current_dir(folder.path());
    let output = command.output().unwrap();
    // The program's own result is 0.
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    Profiled { folder, program }
}

impl Profiled {
    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn gmon(&self, args: &[&str]) -> Vec<u8> {
        gmon(self.folder.path(), args).0
    }

    /// Returns the output of `gmon COMMAND --json`.
    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_slice(&self.gmon(&[args, &["--json"]].concat())).unwrap()
    }

    fn export(&self, format: &str, run: &[&str]) -> PathBuf {
        let to = format!("out.{format}");
        self.gmon(&[&["export", "--to", format, "-o", &to], run].concat());
        self.file(&to)
    }
}

/// Returns the standard output and the exit status of `gmon`.
fn gmon(folder: &Path, args: &[&str]) -> (Vec<u8>, i32) {
    let output = Command::new(tool::gmon().unwrap()).args(args).current_dir(folder).output().unwrap();
    let code = output.status.code().unwrap_or_else(|| panic!("gmon {args:?}: {}", output.status));
    assert!(code < 2, "gmon {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    (output.stdout, code)
}

/// The functions of `gmon flat` or `gmon graph`.
fn functions(json: &Value) -> Vec<&Value> {
    let rows = if json["schema"] == "gmon-flat" { "rows" } else { "functions" };
    json[rows].as_array().unwrap().iter().collect()
}

/// Compares the tables of `gmon flat` and `gmon graph` with gprof's. `shown` returns gprof's name of a function.
fn same_tables(folder: &Path, gprof: [&Path; 2], run: &[&str], shown: impl Fn(&Value) -> String) {
    let json = |command: &str| -> Value {
        let out = gmon(folder, &[&[command, "--json"], run].concat()).0;
        serde_json::from_slice(&out).unwrap()
    };
    let flat = json("flat");
    let mut ours: BTreeMap<String, Vec<(u64, u64)>> = BTreeMap::new();
    for function in functions(&flat) {
        let numbers = (number(&function["primitive"]), number(&function["self_ns"]));
        ours.entry(shown(function)).or_default().push(numbers);
    }
    let theirs = gprof_flat(gprof[0], gprof[1]);
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (name, rows) in &mut ours {
        let mut theirs = theirs[name].clone();
        rows.sort_unstable();
        theirs.sort_by(|a, b| a.partial_cmp(b).unwrap());
        assert_eq!(rows.len(), theirs.len(), "{name}");
        for (ours, theirs) in rows.iter().zip(theirs) {
            assert!(ours.0 == theirs.0 && rounds_to(ours.1, theirs.1, 1.0), "{name}: {ours:?} {theirs:?}");
        }
    }

    let mut ours: BTreeMap<(String, String), Vec<(u64, u64)>> = BTreeMap::new();
    for function in functions(&json("graph")) {
        for caller in function["callers"].as_array().unwrap().iter().filter(|c| !c["name"].is_null()) {
            let numbers = (number(&caller["calls"]), number(&caller["inclusive_ns"]));
            ours.entry((shown(caller), shown(function))).or_default().push(numbers);
        }
    }
    let theirs = gprof_arcs(gprof[0], gprof[1]);
    for (arc, rows) in &theirs {
        let ours = ours.get(arc).unwrap_or_else(|| panic!("no arc {arc:?}"));
        let sum = |counts: &mut dyn Iterator<Item = u64>| counts.sum::<u64>();
        let calls = (sum(&mut ours.iter().map(|row| row.0)), sum(&mut rows.iter().map(|row| row.0)));
        assert_eq!(calls.0, calls.1, "{arc:?}: {ours:?} {rows:?}");
        let (ns, seconds) = (sum(&mut ours.iter().map(|row| row.1)), rows.iter().map(|row| row.1).sum());
        // Self time and that of children are rounded each.
        assert!(rounds_to(ns, seconds, 2.0 * rows.len() as f64), "{arc:?}: {ours:?} {rows:?}");
    }
}

fn name(function: &Value) -> String {
    function["name"].as_str().unwrap().to_owned()
}

fn tables_are_those_of_gprof() {
    let run = profiled(&[]);
    same_tables(run.folder.path(), [&run.program, &run.file("gmon.out")], &["prog", "gmon.out"], name);
    // And in text, by words.
    let text = String::from_utf8(run.gmon(&["flat", "prog", "gmon.out"])).unwrap();
    let head = text.lines().find(|line| line.starts_with("self %")).unwrap();
    for column in ["self %", "cumulative", "~inclusive", "calls", "primitive", "self/call", "~inclusive/call"] {
        assert!(head.contains(column), "{text}");
    }
    let graph = String::from_utf8(run.gmon(&["graph", "prog", "gmon.out"])).unwrap();
    assert!(graph.contains("<cycle 1 as a whole>") && graph.contains("even <cycle 1>"), "{graph}");
}

fn tables_of_lua_are_those_of_gprof() {
    let Ok(corpus) = tool::corpus() else {
        skip::skipped("tables_of_lua_are_those_of_gprof", "no corpus");
        return;
    };
    let lua = corpus.join("lua-O2");
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(tool::gprofinject().unwrap());
    command.arg("-q").arg(&lua).arg(tool::folder().join("data/bench.lua")).arg("5").current_dir(folder.path());
    text(command);
    let run = [lua.to_str().unwrap(), "gmon.out"];
    same_tables(folder.path(), [&lua, &folder.path().join("gmon.out")], &run, name);
}

/// In the view of the whole process, names have their modules behind them only where gprof needs them.
fn tables_of_the_whole_process_are_those_of_gprof() {
    let run = profiled(&["--libs", "all"]);
    let [symbols, whole] = view::written(&run.file("gmon.pb.gz")).unwrap();
    let printed: std::collections::BTreeSet<String> =
        gprof_flat(&symbols, &whole).into_keys().collect();
    let shown = |function: &Value| {
        let plain = name(function);
        let module = function["module"].as_str().and_then(|path| path.rsplit('/').next());
        let told = module.map(|module| format!("{plain}@{module}"));
        told.filter(|told| printed.contains(told)).unwrap_or(plain)
    };
    let theirs = gprof_flat(&symbols, &whole);
    let flat = run.json(&["flat", "gmon.pb.gz"]);
    let mut ours: BTreeMap<String, u64> = BTreeMap::new();
    for function in functions(&flat) {
        *ours.entry(shown(function)).or_default() += number(&function["primitive"]);
    }
    for (name, rows) in theirs {
        let calls: u64 = rows.iter().map(|row| row.0).sum();
        assert_eq!(ours.get(&name), Some(&calls), "{name}");
    }
    // The functions are those of files, at their link addresses there.
    let low = run.folder.path().join("liblow.so");
    let symbols = gprofinject_tests::elf::Program::read(&low).unwrap();
    let inner = functions(&flat).into_iter().find(|function| function["name"] == "inner").unwrap();
    assert_eq!(inner["module"], low.to_str().unwrap());
    assert_eq!(number(&inner["address"]), symbols.named("inner").unwrap().address);
    // As a module, the library is selected alone.
    let only = run.json(&["flat", "gmon.pb.gz", "--module", "liblow.so"]);
    let names: Vec<_> = functions(&only).iter().map(|function| name(function)).collect();
    assert!(names.contains(&"low".to_owned()) && !names.contains(&"main".to_owned()), "{names:?}");
}

/// Returns the self time and the calls of each function, by the names of exports: equal names have addresses.
fn expected(run: &Profiled, files: &[&str]) -> BTreeMap<String, (u64, u64)> {
    let json: Value = serde_json::from_slice(&run.gmon(&[&["export", "--to", "json"], files].concat())).unwrap();
    let all = json["functions"].as_array().unwrap();
    let mut expected = BTreeMap::new();
    for function in all {
        let demangled = function["demangled"].as_str().unwrap();
        let same = all.iter().filter(|other| other["demangled"] == demangled).count();
        let name = match same {
            1 => demangled.to_owned(),
            _ => format!("{demangled} [{:#x}]", number(&function["address"])),
        };
        expected.insert(name, (number(&function["self_ns"]), number(&function["calls"])));
    }
    assert!(expected.contains_key("main") && expected.values().any(|&(ns, _)| ns > 10_000_000), "{expected:?}");
    expected
}

fn callgrind_annotate_reads_it() {
    if !skip::have("callgrind_annotate") {
        skip::skipped("callgrind_annotate_reads_it", "no callgrind_annotate");
        return;
    }
    let run = profiled(&[]);
    let file = run.export("callgrind", &["prog", "gmon.out"]);
    let annotate = |tree: &str| {
        let mut command = Command::new("callgrind_annotate");
        command.args(["--threshold=100", "--auto=no", "--show-percs=no", tree]).arg(&file);
        text(command)
    };
    let own = annotate("--tree=none");
    let lines = annotate("--tree=calling");
    let digits = |text: &str| text.replace(',', "").trim().parse::<u64>();
    for (name, (ns, _)) in expected(&run, &["prog", "gmon.out"]).into_iter().filter(|(_, (ns, _))| *ns > 0) {
        let row = own.lines().find(|line| line.contains(&format!(":{name} ["))).unwrap_or_else(|| panic!("{own}"));
        assert_eq!(digits(row.split_whitespace().next().unwrap()), Ok(ns), "{row}");
    }
    // 21,891 calls of fib, all but one by itself; the inlined loop is in burn, from its own lines.
    assert!(own.contains("main.c:burn ["), "{own}");
    for call in ["main.c:fib (21,890x)", "main.c:fib (1x)", "two.c:one (7x)", "main.c:burn (14x)", "???:low (7x)"] {
        let call = call.replace("???", "low.c");
        // The program's own view does not know the library.
        if call.contains("low") {
            continue;
        }
        assert!(lines.contains(&call), "{call}: {lines}");
    }
    let auto = Command::new("callgrind_annotate").args(["--auto=yes", "--show-percs=no"]).arg(&file).output().unwrap();
    let auto = String::from_utf8_lossy(&auto.stdout).into_owned();
    let hot = auto.lines().find(|line| line.contains("sum += i;")).unwrap_or_else(|| panic!("{auto}"));
    assert!(digits(hot.split_whitespace().next().unwrap()).is_ok_and(|ns| ns > 0), "{hot}");
}

fn gprof2dot_reads_it() {
    if !skip::have("gprof2dot") {
        skip::skipped("gprof2dot_reads_it", "no gprof2dot");
        return;
    }
    let run = profiled(&["--times"]);
    let file = run.export("callgrind", &["gmon.pb.gz"]);
    let mut command = Command::new("gprof2dot");
    command.args(["-f", "callgrind", "-n", "0", "-e", "0"]).arg(&file);
    let dot = text(command);
    for arc in ["main -> fib", "main -> low", "low -> inner", "inner -> back", "even -> odd"] {
        assert!(dot.contains(&format!("\t{arc} [")), "{arc}: {dot}");
    }
    let calls = |function: &str, calls: u64| {
        let row = dot.lines().find(|line| line.starts_with(&format!("\t{function} ["))).unwrap();
        assert!(row.contains(&format!("\\n{calls}\u{d7}\"")), "{row}");
    };
    calls("fib", 21_891);
    calls("back", 28);
    calls("inner", 14);
}

fn pprof_reads_it() {
    if !skip::have("go") {
        skip::skipped("pprof_reads_it", "no go");
        return;
    }
    let run = profiled(&[]);
    let file = run.export("pprof", &["gmon.pb.gz"]);
    let json = run.json(&["flat", "gmon.pb.gz"]);
    let (mut calls, mut times): (BTreeMap<String, u64>, BTreeMap<String, u64>) = Default::default();
    for function in functions(&json) {
        *calls.entry(name(function)).or_default() += number(&function["calls"]);
        *times.entry(name(function)).or_default() += number(&function["self_ns"]);
    }
    let read = pprof_top(&file, "calls", "count");
    for (name, calls) in calls.into_iter().filter(|&(_, calls)| calls > 0) {
        assert_eq!(read.get(&name), Some(&calls), "{name}: {read:?}");
    }
    let read = pprof_top(&file, "time", "ns");
    let burnt = read.get("spin").copied().unwrap_or(0) + read.get("burn").copied().unwrap_or(0);
    assert!(times["burn"] > 0 && burnt == times["burn"], "{times:?} {read:?}");
    assert_eq!(read.values().sum::<u64>(), times.values().sum::<u64>(), "{read:?}");
    // Inlined code is shown as such, with its line.
    assert!(read["spin"] > 0, "{read:?}");
    let mut command = Command::new("go");
    command.args(["tool", "pprof", "-lines", "-top", "-symbolize=none"]).arg(&file);
    let lines = text(command);
    assert!(lines.lines().any(|line| line.contains("spin ") && line.contains("main.c:1")), "{lines}");
    let mut command = Command::new("go");
    command.args(["tool", "pprof", "-sample_index=calls", "-peek=^low$", "-symbolize=none"]).arg(&file);
    let peek = text(command);
    let row = |name: &str| peek.lines().find(|line| line.trim_end().ends_with(name)).unwrap().to_owned();
    assert!(row("|   main").contains(" 7 ") && row("|   inner").contains(" 14 "), "{peek}");
    let mut command = Command::new("go");
    command.args(["tool", "pprof", "-raw", "-symbolize=none"]).arg(&file);
    let raw = text(command);
    let build_id = json["modules"][0]["build_id"].as_str().unwrap();
    assert!(raw.contains(build_id) && raw.contains("liblow.so"), "{raw}");
}

/// Folded stacks, speedscope's and the Firefox Profiler's have the same sums, from pairs and from paths.
fn stacks_of_pairs_and_of_paths() {
    for (options, files) in [(&[][..], &["gmon.pb.gz"][..]), (&["--paths"], &["gmon.pb.gz"])] {
        let run = profiled(options);
        let json = run.json(&[&["flat"], files].concat());
        let all: u64 = functions(&json).iter().map(|function| number(&function["self_ns"])).sum();
        let fib = functions(&json).into_iter().find(|function| function["name"] == "fib").unwrap();

        let folded = std::fs::read_to_string(run.export("folded", files)).unwrap();
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for line in folded.lines() {
            let (stack, ns) = line.rsplit_once(' ').unwrap();
            *sums.entry(stack.rsplit(';').next().unwrap()).or_default() += ns.parse::<u64>().unwrap();
        }
        let of_nodes = !options.is_empty();
        let close = |sum: u64, expected: u64| {
            // Nodes are rounded to nanoseconds one by one.
            if of_nodes { sum.abs_diff(expected) <= 1000 + expected / 1000 } else { sum == expected }
        };
        assert!(close(sums.values().sum(), all), "{folded}");
        assert!(!of_nodes || close(sums["fib"], number(&fib["self_ns"])), "{folded}");
        assert!(folded.contains(if of_nodes { "main;low;inner;back " } else { "main;burn;spin " }), "{folded}");

        let speedscope: Value = serde_json::from_slice(&std::fs::read(run.export("speedscope", files)).unwrap()).unwrap();
        assert_eq!(speedscope["$schema"], "https://www.speedscope.app/file-format-schema.json");
        let frames = speedscope["shared"]["frames"].as_array().unwrap();
        let mut sum = 0;
        for profile in speedscope["profiles"].as_array().unwrap() {
            assert!(profile["type"] == "sampled" && profile["unit"] == "nanoseconds" && profile["startValue"] == 0);
            let (samples, weights) = (profile["samples"].as_array().unwrap(), profile["weights"].as_array().unwrap());
            assert_eq!(samples.len(), weights.len());
            let weight: u64 = weights.iter().map(number).sum();
            assert_eq!(number(&profile["endValue"]), weight);
            sum += weight;
            for frame in samples.iter().flat_map(|sample| sample.as_array().unwrap()) {
                assert!((number(frame) as usize) < frames.len());
            }
        }
        assert!(close(sum, all));
        assert!(of_nodes || frames.iter().any(|frame| frame["name"] == "spin" && frame["line"].is_u64()), "{frames:?}");
        // speedscope shows each frame as a function of its own, so the lines of one are one frame.
        let of_spin: Vec<_> = frames.iter().filter(|frame| frame["name"] == "spin").collect();
        assert!(of_spin.len() <= 1, "{of_spin:?}");
        firefox(&run.export("firefox", files), all, of_nodes);
    }
}

fn graphviz_reads_it() {
    if !skip::have("dot") {
        skip::skipped("graphviz_reads_it", "no dot");
        return;
    }
    let run = profiled(&["--times"]);
    let mut command = Command::new("dot");
    command.arg("-Tsvg").arg(run.export("dot", &["gmon.pb.gz"]));
    let picture = text(command);
    assert!(picture.contains(">main<") && picture.contains(">burn<"), "{picture}");
    assert!(picture.contains("<title>"), "{picture}");
}

/// Instructions that were counted are a cost of their own, and their sum is callgrind's.
fn counted_instructions() {
    if !skip::have("callgrind_annotate") {
        skip::skipped("counted_instructions", "no callgrind_annotate");
        return;
    }
    let run = profiled(&["--count", "lines", "--libs", "none", "--rate", "0"]);
    let file = run.export("callgrind", &["prog", "gmon.out"]);
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=cg.out", "-q"]).arg(&run.program);
    command.current_dir(run.folder.path());
    text(command);
    let (ours, theirs) = (callgrind_instructions(&file, "/prog]"), callgrind_instructions(&run.file("cg.out"), "/prog]"));
    // Callgrind also counts the jumps through the PLT by which main calls the library, and charges them to main.
    for function in ["fib", "burn", "even", "odd", "same", "one", "two", "back"] {
        assert_eq!(ours.get(function), theirs.get(function), "{function}: {ours:?} {theirs:?}");
    }
}

fn a_planted_slowdown() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let source = r#"
        __attribute__((noinline)) long slow(long n) { volatile long s = 0; for (long i = 0; i < n * N; i++) s += i; return s; }
        __attribute__((noinline)) long fast(long n) { volatile long s = 0; for (long i = 0; i < n; i++) s += i; return s; }
        __attribute__((noinline)) static long part(long n, int by) { return fast(n / by) + slow(n / 4); }
        int main(void) { long s = 0; for (int i = 0; i < 40; i++) s += part(6000000, 1); return s == 42; }
    "#;
    std::fs::write(at("p.c"), source).unwrap();
    for (program, factor, options) in [("old", "-DN=1", "-O2"), ("new", "-DN=8", "-O1"), ("again", "-DN=1", "-O2")] {
        gcc(folder.path(), &[options, factor, "p.c", "-o", program]);
        let mut command = Command::new(tool::gprofinject().unwrap());
        command.args(["-q", "-o", &format!("{program}.out")]).arg(at(program));
        text({
            command.current_dir(folder.path());
            command
        });
    }
    let (out, code) = gmon(folder.path(), &["diff", "old.pb.gz", "new.pb.gz", "--sort", "self", "--json"]);
    let json: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!((code, &json["worse"][0]["demangled"]), (1, &Value::from("slow")), "{json}");
    // gcc makes a clone of a function with a constant argument at -O2 only; it is the same function all the same.
    let symbols = text({
        let mut nm = Command::new("nm");
        nm.arg(at("old"));
        nm
    });
    assert!(symbols.contains("part.constprop.0"), "{symbols}");
    let part = functions(&json).into_iter().find(|function| function["demangled"] == "part").unwrap();
    assert_eq!((number(&part["old"]["calls"]), number(&part["new"]["calls"])), (40, 40));
    assert!(functions(&json).iter().all(|function| function["demangled"] != "part.constprop.0"));
    let (text, code) = gmon(folder.path(), &["diff", "old.pb.gz", "new.pb.gz", "--sort", "self"]);
    let text = String::from_utf8(text).unwrap();
    assert!(code == 1 && text.contains("worse by more than 2 % of all, first of all slow: +"), "{text}");
    // Times differ from run to run, so they are shown, but are no reason to fail unless the user says so.
    let (text, code) = gmon(folder.path(), &["diff", "old.pb.gz", "new.pb.gz"]);
    let text = String::from_utf8(text).unwrap();
    let (calls, times) = text.split_once("self time: +").expect("both");
    assert!(code == 0 && calls.contains("calls: none has changed"), "{text}");
    assert!(times.lines().any(|line| line.ends_with(" slow")), "{text}");
    // By calls, which are exact, nothing has changed; and a run is as good as itself.
    let calls = gmon(folder.path(), &["diff", "old.pb.gz", "again.pb.gz", "--sort", "calls", "--threshold", "0"]);
    assert_eq!(calls.1, 0, "{}", String::from_utf8_lossy(&calls.0));
    assert_eq!(gmon(folder.path(), &["diff", "old.pb.gz", "old.pb.gz", "--threshold", "0"]).1, 0);
    // Better is not worse.
    let better = gmon(folder.path(), &["diff", "new.pb.gz", "old.pb.gz", "--sort", "self", "--threshold", "20"]);
    assert_eq!(better.1, 0, "{}", String::from_utf8_lossy(&better.0));
}

/// Another user may have written the files: whatever is in them, there is a run that every format takes, or an error.
fn damaged_files() {
    use gmon_export::formats::{Format, write};
    use gmon_export::load::{Detail, recording};
    let run = profiled(&[]);
    let file = std::fs::read(run.file("gmon.pb.gz")).unwrap();
    let mut message = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(file.as_slice()), &mut message).unwrap();
    // A generator of Marsaglia's (xorshift64).
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let mut read = 0;
    for round in 0..1500 {
        // What was compressed is damaged, or what was compressed of it.
        let mut damaged = if round % 20 == 0 { file.clone() } else { message.clone() };
        for _ in 0..=next(8) {
            let at = next(damaged.len());
            damaged[at] = [0, 1, 0x7f, 0x80, 0xff, next(256) as u8][next(6)];
        }
        if round % 10 == 9 {
            damaged.truncate(next(damaged.len()));
        }
        if round % 20 > 0 {
            let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
            std::io::Write::write_all(&mut packed, &damaged).unwrap();
            damaged = packed.finish().unwrap();
        }
        let Ok(read_run) = gmon_run::Recording::read(&damaged) else { continue };
        let run = recording(&read_run, Detail::Functions);
        read += 1;
        let _ = gmon_export::formats::pair(&run);
        for (_, format) in Format::ALL {
            let mut out = Vec::new();
            write(&run, format, &mut out).unwrap();
        }
        gmon_export::diff::diff(&run, &run);
    }
    assert!(read > 100, "{read} files were read");
}

/// Exports at the end of a run are what `gmon export` makes of its files, and are checked before the run.
fn places_of_exports() {
    let folder = tempfile::tempdir().unwrap();
    let prog = program(folder.path());
    std::fs::write(folder.path().join("run"), "#!/bin/sh\n./prog\n./prog\n").unwrap();
    let formats = ["callgrind", "pprof", "folded", "speedscope", "firefox", "dot", "json"];
    let all: Vec<String> = formats.iter().map(|format| format!("{format}=e.{format}")).collect();
    let run = |options: &[&str], program: &[&str]| {
        let mut command = Command::new(tool::gprofinject().unwrap());
        command.args(["-q"]).args(options).args(program).current_dir(folder.path());
        command.output().unwrap()
    };
    let done = run(&["--export", &all.join(",")], &["./prog"]);
    assert!(done.status.success() && done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    for format in formats {
        let (again, _) = gmon(folder.path(), &["export", "--to", format, "gmon.pb.gz"]);
        let at_the_end = std::fs::read(folder.path().join(format!("e.{format}"))).unwrap();
        assert!(again == at_the_end && !again.is_empty(), "{format}");
    }
    // Another program's are beside the first one's.
    let done = run(&["--export", "json=w.json"], &["/bin/sh", "run"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let other: Value = serde_json::from_slice(&std::fs::read(folder.path().join("w.json.prog")).unwrap()).unwrap();
    let fib = functions(&other).into_iter().find(|function| function["name"] == "fib").unwrap();
    assert_eq!(number(&fib["calls"]), 2 * 21_891, "in two processes");
    for (export, said) in [
        ("callgrind=/nowhere/x", "name another file with --export callgrind=FILE"),
        ("callgrind=prog", "it is a program, a library or a script"),
        ("callgrind=same,dot=same", "--export and --export name the same file"),
        ("callgrind=gmon.out", "--output and --export name the same file"),
        ("xls=x", "expected one of callgrind, pprof"),
    ] {
        std::fs::remove_file(folder.path().join("gmon.out")).ok();
        let done = run(&["--export", export], &["./prog"]);
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(125) && stderr.contains(said), "{export}: {stderr}");
        assert!(!folder.path().join("gmon.out").exists(), "{export}: it ran");
    }
    assert!(prog.exists());
    // gmon makes them.
    let alone = folder.path().join("alone");
    std::fs::create_dir(&alone).unwrap();
    std::fs::copy(tool::gprofinject().unwrap(), alone.join("gprofinject")).unwrap();
    let mut command = Command::new(alone.join("gprofinject"));
    let done = command.args(["--export", "json=x", "./prog"]).env("PATH", &alone).current_dir(folder.path()).output();
    let done = done.unwrap();
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(125) && stderr.contains("--export needs gmon"), "{stderr}");
}
