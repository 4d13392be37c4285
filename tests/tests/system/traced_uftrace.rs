//! Traces compared with uftrace's: programs are built with `-pg` or `-finstrument-functions`, recorded by `uftrace record`, and
//! traced as they are, and as a plain build of the same source. Each thread has the same calls, equally deep, in the same order.
//!
//! ```text
//! build with hooks ─ uftrace record, dump ─> entries and exits ─┐
//!        │                                                      ├─ those of the functions with hooks ─> equal
//!        ├───────── gprofinject --trace ─> gmon trace ──────────┤
//! plain build ───── gprofinject --trace ─> gmon trace ──────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::place::{self, Place};
use gprofinject_tests::run::Outcome;
use gprofinject_tests::traced::{Line, lines, shown};
use gprofinject_tests::{compile, generate, tool};

gprofinject_tests::trials! {
    together:
        threads_signals_and_jumps,
        exceptions,
        bzip2,
        lua;
}

/// Threads, recursion, function pointers, calls through qsort, a signal handler, and jumps out of nested calls and out of the
/// handler. Which calls there are depends on the source alone.
const LOGIC: &str = r#"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#define NOINLINE __attribute__((noipa))
static __thread jmp_buf back;
NOINLINE static int leaf(int x) { return x + 1; }
NOINLINE static int fib(int n) { return n < 2 ? leaf(n) : fib(n - 1) + fib(n - 2); }
NOINLINE static int ping(int n);
NOINLINE static int pong(int n) { return n ? ping(n - 1) + 1 : 0; }
NOINLINE static int ping(int n) { return n ? pong(n - 1) + 1 : 0; }
NOINLINE static int order(const void *a, const void *b) { return leaf(*(const int *)a) - leaf(*(const int *)b); }
NOINLINE static void dive(int n) { if (n == 0) longjmp(back, 1); dive(n - 1); leaf(n); }
NOINLINE static int jumps(int n) {
    volatile int i = 0;
    for (; i < n; i++) if (setjmp(back) == 0) dive(i); else leaf(i);
    return i;
}
NOINLINE static void handler(int signal) { fib(signal % 4 + 3); }
NOINLINE static void leaving(int signal) { leaf(signal); dive(2); }
NOINLINE static void signals(void) {
    raise(SIGUSR1);
    if (setjmp(back) == 0) raise(SIGUSR2);
    leaf(0);
}
NOINLINE static void *thread(void *arg) {
    int n = (int)(long)arg, values[20];
    for (int i = 0; i < 20; i++) values[i] = (i * 7 + n) % 20;
    qsort(values, 20, sizeof *values, order);
    return (void *)(long)(fib(n) + ping(n) + jumps(n) + values[0]);
}
int main(void) {
    pthread_t threads[4];
    struct sigaction action = {.sa_handler = leaving, .sa_flags = SA_NODEFER};
    sigaction(SIGUSR2, &action, NULL);
    signal(SIGUSR1, handler);
    for (long i = 0; i < 4; i++) pthread_create(&threads[i], NULL, thread, (void *)(i + 3));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    signals();
    thread((void *)12);
    signals();
    return 0;
}
"#;

/// Exceptions that are caught, thrown again and pass destructors, virtual functions, and threads.
const THROWING: &str = r#"
#include <stdexcept>
#include <thread>
struct Guard { int n; Guard(int n) : n(n) {} ~Guard(); };
void closed(int x) { __asm__ volatile("" : : "r"(x)); }
Guard::~Guard() { closed(n); }
int inner(int n) { if (n % 3 == 0) throw std::runtime_error("x"); return n; }
int middle(int n) { Guard guard(n); return inner(n) + 1; }
int again(int n) { try { return middle(n); } catch (...) { closed(n); throw; } }
int outer(int n) { try { return again(n); } catch (const std::exception &) { return -n; } }
struct Base { virtual int get(int n) = 0; virtual ~Base() {} };
struct Derived : Base { int get(int n) override { return n ? get(n - 1) + 1 : 0; } };
void work(int n) {
    int s = 0;
    for (int i = 1; i <= n; i++) s += outer(i);
    Derived d;
    Base *b = &d;
    s += b->get(5);
    __asm__ volatile("" : : "r"(s));
}
int main() { std::thread a(work, 5), b(work, 9); a.join(); b.join(); work(40); return 0; }
"#;

const LEVELS: [&str; 4] = ["-O0", "-O1", "-O2", "-O3"];

/// Circles of tail calls are frames of uftrace's each, and in our traces one call of each function; a jump of a function to its own
/// beginning is a call of uftrace's, and in our traces a loop (docs/trace.md). So the programs are compiled without any.
const FLAGS: [&str; 3] = ["-g", "-w", "-fno-optimize-sibling-calls"];

/// With it, a plain build has the calls that a build with hooks has.
const NOT_INLINED: &str = "-fno-inline";

/// The beginning of a call, or its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Edge {
    Begins,
    Ends,
}

/// What happens to a call, within how many others that are seen, and its function.
type Step = (Edge, usize, String);

/// What is compared: also the ends of calls, if uftrace sees them all. It writes none for calls that longjmp or an exception leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Compared {
    Beginnings,
    All,
}

/// How a build tells uftrace of its calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hooks {
    Pg,
    /// A clone such as `f.constprop.0` says that it is `f`.
    Instrumented,
}

impl Hooks {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Hooks::Pg => &["-pg"],
            // Functions of the library's headers have other clones in each build.
            Hooks::Instrumented => {
                &["-finstrument-functions", "-finstrument-functions-exclude-file-list=/usr/include,/usr/lib"]
            }
        }
    }

    fn name(self, name: &str) -> String {
        match self {
            Hooks::Pg => name.to_owned(),
            Hooks::Instrumented => name.split('.').next().unwrap_or_default().to_owned(),
        }
    }
}

/// Returns the functions that call a hook of uftrace's, as the disassembler shows them.
fn with_hooks(program: &Path, hooks: Hooks) -> BTreeSet<String> {
    let output = Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(program).output().unwrap();
    assert!(output.status.success(), "objdump");
    let (mut found, mut inside) = (BTreeSet::new(), "");
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text.lines() {
        if let Some((_, name)) = line.split_once(" <").filter(|_| line.ends_with(">:")) {
            inside = name.trim_end_matches(">:");
        } else if line.contains("call ") && (line.contains("<mcount@") || line.contains("<__cyg_profile_func_enter@")) {
            found.insert(hooks.name(inside));
        }
    }
    assert!(!found.is_empty(), "{} has no hooks", program.display());
    found
}

/// Returns the steps of these functions alone, and how deep they are among themselves. A call that was left without an end of
/// its own is over when one begins that is not deeper.
fn of_functions(steps: Vec<Step>, functions: &BTreeSet<String>, compared: Compared) -> Vec<Step> {
    let mut open: Vec<(usize, bool)> = Vec::new();
    let mut found = Vec::new();
    for (edge, depth, name) in steps {
        while open.last().is_some_and(|&(other, _)| other >= depth) {
            open.pop();
        }
        let among = open.iter().filter(|&&(_, is_seen)| is_seen).count();
        let is_seen = functions.contains(&name);
        if edge == Edge::Begins {
            open.push((depth, is_seen));
        }
        if is_seen && (edge == Edge::Begins || compared == Compared::All) {
            found.push((edge, among, name));
        }
    }
    found
}

/// Runs `uftrace record` and `uftrace dump`, and returns the steps of each thread.
///
/// uftrace hooks the C library's functions too, because it does not see longjmp otherwise.
fn theirs(place: &Place, program: &[&str]) -> BTreeMap<u32, Vec<Step>> {
    /// uftrace 0.13 ends one in a hundred programs with threads by a SIGTRAP of its own.
    const TRIES: usize = 20;
    let data = place.path("uftrace");
    let record = || {
        let _ = std::fs::remove_dir_all(&data);
        let mut record = Command::new("uftrace");
        record.args(["record", "--no-event", "--no-sched", "--no-pager", "-d"]).arg(&data).args(program);
        record.current_dir(place.folder.path());
        place::finish(record)
    };
    let is_of_use = |outcome: &Outcome| !outcome.stderr_text().contains("child terminated by signal: 5");
    let mut tries = (0..TRIES).map(|_| record());
    let outcome = tries.find(is_of_use).expect("uftrace record");
    assert_eq!(outcome.code(), 0, "uftrace record: {}", outcome.stderr_text());
    let mut dump = Command::new("uftrace");
    dump.args(["dump", "--demangle=no", "--no-pager", "--color=no", "-d"]).arg(&data);
    let outcome = place::finish(dump);
    assert_eq!(outcome.code(), 0, "uftrace dump: {}", outcome.stderr_text());
    // `14389.176648652   3982: [entry] main(564de7d1a220) depth: 0`
    let step = |line: &str| {
        let (before, after) = line.split_once(": [")?;
        let (kind, after) = after.split_once("] ")?;
        let edge = match kind.trim() {
            "entry" => Edge::Begins,
            "exit" => Edge::Ends,
            other => panic!("uftrace dump has {other}: {line}"),
        };
        let (call, depth) = after.split_once(" depth: ")?;
        let tid = before.split_whitespace().nth(1)?.parse().ok()?;
        Some((tid, (edge, depth.trim().parse().ok()?, call.rsplit_once('(')?.0.to_owned())))
    };
    let mut all: BTreeMap<u32, Vec<Step>> = BTreeMap::new();
    for (tid, step) in outcome.stdout_text().lines().filter_map(step) {
        all.entry(tid).or_default().push(step);
    }
    all
}

/// Runs `gprofinject --trace` and `gmon trace`, and returns the steps of each thread.
fn ours(place: &Place, program: &[&str], hooks: Hooks) -> BTreeMap<u32, Vec<Step>> {
    let outcome = place.run(&[&["-q", "--trace", "trace", "--libs", "none"], program].concat());
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    let mut all: BTreeMap<u32, Vec<Step>> = BTreeMap::new();
    for Line { tid, depth, text } in lines(&shown(place, "trace", &["--no-demangle", "--fields", "tid"])) {
        let here = all.entry(tid).or_default();
        let mut happens = |edge, name: &str| here.push((edge, depth, hooks.name(name)));
        if let Some(name) = text.strip_prefix("} /* ") {
            happens(Edge::Ends, name.split([' ', ':', ';']).next().unwrap());
        } else {
            let (name, rest) = text.split_once("()").unwrap_or_else(|| panic!("what is {text:?}?"));
            happens(Edge::Begins, name);
            if rest.starts_with(';') {
                happens(Edge::Ends, name);
            }
        }
    }
    all
}

/// What the threads have done, without regard to their numbers and order.
fn by_thread(all: BTreeMap<u32, Vec<Step>>, functions: &BTreeSet<String>, compared: Compared) -> Vec<Vec<Step>> {
    let threads = all.into_values().map(|steps| of_functions(steps, functions, compared));
    let mut threads: Vec<_> = threads.filter(|steps| !steps.is_empty()).collect();
    threads.sort();
    threads
}

/// Compares the traces of a program that has been built with hooks, and of its plain build if there is one, with uftrace's.
/// Returns how many steps are equal.
fn compare(what: &str, place: &Place, built: &Built, args: &[&str], hooks: Hooks, compared: Compared) -> usize {
    let functions = with_hooks(&built.hooked, hooks);
    let theirs =
        by_thread(theirs(place, &[&[built.hooked.to_str().unwrap()], args].concat()), &functions, compared);
    let steps: usize = theirs.iter().map(Vec::len).sum();
    assert!(steps > 0, "{what}: uftrace has seen nothing");
    for program in [Some(&built.hooked), built.plain.as_ref()].into_iter().flatten() {
        let program = program.to_str().unwrap();
        let ours = by_thread(ours(place, &[&[program], args].concat(), hooks), &functions, compared);
        for (one, other) in theirs.iter().zip(&ours) {
            if let Some(at) = (0..one.len().max(other.len())).find(|&at| one.get(at) != other.get(at)) {
                let around = |steps: &[Step]| {
                    format!("{:?}", &steps[at.saturating_sub(3).min(steps.len())..steps.len().min(at + 5)])
                };
                panic!("{what}: {program}: step {at}:\nuftrace {}\nours    {}", around(one), around(other));
            }
        }
        assert_eq!(ours.len(), theirs.len(), "{what}: {program}: threads");
    }
    // The number of compared steps is a part of the result.
    let builds = if built.plain.is_some() { "the same, and plain" } else { "the same" };
    println!("| {what} | {builds} | {} | {steps} | equal |", theirs.len());
    steps
}

/// Whether uftrace and what it needs are here.
fn can(test: &str) -> bool {
    skip::have_for(test, &["uftrace", "objdump"])
}

/// A program that has been built with hooks, and perhaps without.
struct Built {
    hooked: PathBuf,
    plain: Option<PathBuf>,
}

fn threads_signals_and_jumps() {
    if !can("uftrace: threads, signals and jumps") {
        return;
    }
    for level in LEVELS {
        let place = Place::new();
        let flags = [&FLAGS[..], &["-pthread", level]].concat();
        let hooked = place.c("hooked", LOGIC, &[&flags, Hooks::Pg.flags()].concat());
        let built = Built { hooked, plain: Some(place.c("plain", LOGIC, &flags)) };
        compare(&format!("logic, -pg {level}"), &place, &built, &[], Hooks::Pg, Compared::Beginnings);
    }
}

fn exceptions() {
    if !can("uftrace: exceptions") {
        return;
    }
    for level in LEVELS {
        let flags = [&FLAGS[..], &[NOT_INLINED, "-std=c++17", "-pthread", "-x", "c++", level]].concat();
        for (hooks, compared) in [(Hooks::Pg, Compared::Beginnings), (Hooks::Instrumented, Compared::All)] {
            let place = Place::new();
            let build = |name, more: &[&str]| {
                place.compile("g++", name, THROWING, &[&flags, more].concat()).unwrap()
            };
            // -finstrument-functions keeps the calls of an empty destructor, which the optimizer removes otherwise.
            let plain = (hooks == Hooks::Pg).then(|| build("plain", &[]));
            let built = Built { hooked: build("hooked", hooks.flags()), plain };
            compare(&format!("exceptions, {} {level}", hooks.flags()[0]), &place, &built, &[], hooks, compared);
        }
    }
}

/// The source files of a program of the corpus, and the options that it needs.
struct Sources {
    files: Vec<PathBuf>,
    flags: Vec<String>,
}

impl Sources {
    /// Finds the sources of the program, without these files, or reports why there are none.
    fn find(name: &str, folder: &str, without: &[&str], flags: &[&str]) -> Option<Sources> {
        let corpus = match tool::corpus() {
            Ok(corpus) => corpus,
            Err(error) => {
                skip::skipped(&format!("uftrace: {name}"), &format!("no corpus: {error:#}"));
                return None;
            }
        };
        let files_in = |folder: &Path| -> Vec<PathBuf> {
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
        };
        let name_of = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let unpacked = files_in(&corpus.join("src"));
        let unpacked = unpacked.iter().filter(|path| path.is_dir() && name_of(path).starts_with(name)).max();
        let mut files = files_in(&unpacked.unwrap().join(folder));
        files.retain(|path| {
            path.extension().is_some_and(|end| end == "c") && !without.contains(&&*name_of(path))
        });
        files.sort();
        let include = format!("-I{}", corpus.join("include").display());
        let flags = flags.iter().map(|&flag| flag.to_owned()).chain([include]).collect();
        Some(Sources { files, flags })
    }

    fn build(&self, place: &Place, name: &str, flags: &[&str]) -> PathBuf {
        let mut command = Command::new("gcc");
        command.args(FLAGS).args(&self.flags).args(flags).arg("-o").arg(place.path(name));
        command.args(&self.files).args(["-lm", "-ldl"]);
        compile::compile(command).unwrap();
        place.path(name)
    }

    /// Compares the traces of builds at these levels, each with its own inlining; and of a plain build without any.
    fn compare(&self, what: &str, levels: &[&str], run: impl Fn(&str, &Place, &Built) -> usize) {
        let mut steps = Vec::new();
        for level in levels {
            let place = Place::new();
            let hooked = self.build(&place, "hooked", &[Hooks::Pg.flags(), &[level]].concat());
            steps.push(run(&format!("{what}, -pg {level}"), &place, &Built { hooked, plain: None }));
        }
        // The more is inlined, the fewer calls are left. Otherwise the same program would have been compared several times.
        assert!(steps.is_sorted_by(|one, other| one >= other) && steps.first() > steps.last(), "{what}: {steps:?}");
        let place = Place::new();
        let flags = ["-O2", NOT_INLINED];
        let hooked = self.build(&place, "hooked", &[&flags, Hooks::Pg.flags()].concat());
        let plain = Some(self.build(&place, "plain", &flags));
        run(&format!("{what}, -pg -O2 {NOT_INLINED}"), &place, &Built { hooked, plain });
    }
}

fn bzip2() {
    if !can("uftrace: bzip2") {
        return;
    }
    // These have a main of their own.
    let others = ["bzip2recover.c", "dlltest.c", "mk251.c", "spewG.c", "unzcrash.c"];
    let Some(sources) = Sources::find("bzip2-", ".", &others, &["-D_FILE_OFFSET_BITS=64"]) else { return };
    sources.compare("bzip2", &LEVELS, |what, place, built| {
        std::fs::write(place.path("data"), generate::compressible(100_000)).unwrap();
        let packing = compare(what, place, built, &["-kf", "data"], Hooks::Pg, Compared::All);
        let what = format!("{what}, unpacking");
        packing + compare(&what, place, built, &["-dkf", "data.bz2"], Hooks::Pg, Compared::All)
    });
}

/// Without errors and coroutines: uftrace 0.13 loses its own stack at lua's longjmp, and the program crashes.
const SCRIPT: &str = "local t = {} for i = 1, 300 do t[i] = i * 7919 % 307 end table.sort(t) print(t[1], #t)\n\
    for k, v in pairs({a = 1, b = {c = 2}}) do print(k, type(v)) end\n\
    print(string.format('%5.2f %s', 3.14159, ('x'):rep(10)), (('hello world'):gsub('o', '0')), load('return 1 + 1')())\n\
    print(select('#', table.unpack(t)), setmetatable({}, {__index = function(_, k) return k end}).x)";

fn lua() {
    if !can("uftrace: lua") {
        return;
    }
    // No hash depends on an address (tests/corpus.sh).
    let flags = [
        "-std=gnu99",
        "-Dluai_makeseed(L)=42",
        "-DSTRCACHE_N=1",
        "-DSTRCACHE_M=2",
        "-DLUA_COMPAT_5_3",
        "-DLUA_USE_LINUX",
    ];
    let Some(sources) = Sources::find("lua5.4-", "src", &["luac.c"], &flags) else { return };
    sources.compare("lua", &["-O0", "-O3"], |what, place, built| {
        std::fs::write(place.path("a.lua"), SCRIPT).unwrap();
        compare(what, place, built, &["a.lua"], Hooks::Pg, Compared::All)
    });
}
