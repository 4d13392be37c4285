//! `--outermost`: of a module, only calls whose call site is in other code are counted, measured and traced.
//!
//! The expected arcs follow from the sources here; those of zlib are the calls that callgrind sees from other objects.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use gprofinject_skip as skip;
use gprofinject_tests::attached::Subject;
use gprofinject_tests::place::{Place, finish};
use gprofinject_tests::tool::Hooks;
use gprofinject_tests::{callgrind, tool, view};
use serde_json::Value;

use crate::libraries::{has, same, whole};
use crate::library_control::{self, alone, controlled, profiled, tell};
use crate::plugins::with_plugins;

gprofinject_tests::trials! {
    together:
        calls_from_outside,
        calls_from_outside_of_the_program,
        zlib_as_callgrind_sees_it,
        threads_count_calls_from_outside,
        plugins_count_calls_from_outside,
        running_on_stays_inside,
        times_traces_and_values_of_calls_from_outside,
        the_report_of_a_module,
        modules_are_switched,
        a_running_process,
        what_cannot_be_combined;
}

/// Calls within the library of each kind: direct, through the PLT, through pointers, by jumps, recursive, and in code that the program
/// or the C library calls back. `leaf` and `api` are exported, the static functions are not; `pick` gives the address of one away.
const LIBRARY: &str = r#"
#include <stdlib.h>
#define NOINLINE __attribute__((noinline, noclone))
#define HIDDEN __attribute__((visibility("hidden")))
volatile int visits;
NOINLINE int leaf(int x) { visits++; return x * 3; }
extern int leaf_directly(int x) __attribute__((alias("leaf"), visibility("hidden")));
static NOINLINE int inner(int x) { visits++; return leaf(x) + leaf_directly(x); }
NOINLINE int api(int x) { return inner(x) + inner(x + 1); }
NOINLINE int tail(int x) { visits++; return api(x); }
static NOINLINE int given(int x) { return leaf(x) + 1; }
typedef int (*function)(int);
static function const table[] = {leaf, given};
NOINLINE int indirect(int x) { int s = 0; for (int i = 0; i < 2; i++) s += table[i](x); return s; }
function pick(void) { return given; }
int each(int n, function f) { int s = 0; for (int i = 0; i < n; i++) s += f(i); return s; }
NOINLINE int jump_out(function f, int x) { visits++; return f(x); }
int down(int n) { return n < 2 ? 1 : n + down(n - 1); }
static int compare(const void *a, const void *b) { visits++; return *(int *)a - *(int *)b; }
static NOINLINE void sort_two(int *v) { qsort(v, 2, sizeof *v, compare); visits++; }
void sort(int *v) { sort_two(v); visits++; }
static NOINLINE void made(void) { visits++; }
__attribute__((constructor)) static void begin(void) { made(); visits++; }
"#;

const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#define NOINLINE __attribute__((noinline, noclone))
typedef int (*function)(int);
int leaf(int), api(int), tail(int), indirect(int), each(int, function), jump_out(function, int), down(int);
function pick(void);
void sort(int *);
#ifdef THREADS
#include <pthread.h>
#else
#define THREADS 0
#endif
NOINLINE int callback(int x) { return api(x) + 1; }
NOINLINE int jumping(int x) { __asm__ volatile(""); return leaf(x); }
NOINLINE int nested(int x) { return each(2, callback) + x; }
NOINLINE int by_value(const void *a, const void *b) { return leaf(*(int *)a) - leaf(*(int *)b); }
static NOINLINE void *rounds(void *sum) {
    long s = 0;
    for (int i = 0; i < 10; i++) {
        int v[2] = {2, 1};
        s += leaf(i) + api(i) + tail(i) + indirect(i) + down(5) + pick()(i);
        s += each(3, callback) + each(2, jumping) + jump_out(callback, i) + jump_out(jumping, i) + each(1, nested);
        sort(v);
        v[0] = 7;
        qsort(v, 2, sizeof *v, by_value);
        s += v[0];
    }
    *(long *)sum = s;
    return 0;
}
int main(void) {
    long s[8];
    if (THREADS == 0) rounds(s);
#if THREADS
    pthread_t all[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&all[i], 0, rounds, &s[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(all[i], 0);
#endif
    printf("%ld\n", s[0]);
    return 0;
}
"#;

/// The calls of the library's functions from outside, for ten rounds. The C library calls `compare`, for `sort_two`, which has no frame
/// that is hooked, so for `sort`.
const FROM_OUTSIDE: &[(&str, &str, u64)] = &[
    ("rounds", "leaf", 10),
    ("rounds", "api", 10),
    ("rounds", "tail", 10),
    ("rounds", "indirect", 10),
    ("rounds", "down", 10),
    ("rounds", "pick", 10),
    ("rounds", "given", 10),
    ("rounds", "each", 30),
    ("nested", "each", 10),
    ("rounds", "jump_out", 20),
    ("rounds", "sort", 10),
    ("callback", "api", 60),
    ("jumping", "leaf", 30),
    ("by_value", "leaf", 20),
    ("sort", "compare", 10),
];

/// The functions of the library.
const OF_LIBRARY: &[&str] = &[
    "leaf", "inner", "api", "tail", "given", "indirect", "pick", "each", "jump_out", "down", "compare", "sort_two", "sort", "made",
];

fn built(flags: &[&str], library: &[&str]) -> Place {
    let place = Place::new();
    place.c("libinner.so", LIBRARY, &[flags, library, &["-g", "-fPIC", "-shared"]].concat());
    let path = place.path("libinner.so");
    let linked = ["-g", path.to_str().unwrap(), "-Wl,-rpath,$ORIGIN", "-Wl,-z,now", "-pthread"];
    place.c("prog", PROGRAM, &[flags, &linked].concat());
    place
}

/// All calls of the library's functions but its constructor.
fn of_library(place: &Place) -> Calls {
    let mut calls = whole(place);
    calls.retain(|(_, to), _| OF_LIBRARY.contains(&&**to));
    calls
}

fn expected(times: u64) -> Calls {
    let of = |&(from, to, count): &(&str, &str, u64)| (pair(from, to), times * count);
    FROM_OUTSIDE.iter().map(of).collect()
}

/// The ways to build the library: functions that it exports are called through the PLT, or directly.
const LIBRARIES: [&[&str]; 3] = [&[], &["-Wl,-Bsymbolic", "-fno-plt"], &["-fno-semantic-interposition", "-fcf-protection"]];

type Calls = BTreeMap<(String, String), u64>;

fn calls_from_outside() {
    for flags in [&["-O2"][..], &["-O0"], &["-Os"], &["-O2", "-no-pie", "-fno-pie"]] {
        for library in LIBRARIES {
            let place = built(flags, library);
            for options in [&[][..], &["--hooks", "entry"], &["--times"], &["--paths", "--libs", "auto"]] {
                same(&place, &[&["-q", "--outermost", "libinner*"], options].concat(), &[]);
                let what = format!("{flags:?} {library:?} {options:?}");
                let (ours, expected) = (of_library(&place), expected(1));
                if !options.contains(&"entry") {
                    assert_eq!(ours, expected, "{what}");
                    continue;
                }
                // Without exit hooks, there is no frame that could have called. A call by a jump has the caller to which it returns: that is
                // the library if `each` has called `jumping`, and the program if it has called `tail`, whose jump to `api` is redirected
                // unless it is short or goes through the PLT.
                let sum = |calls: &Calls| calls.values().sum::<u64>();
                let jumps = !flags.contains(&"-O0");
                let lost = if jumps { 20 } else { 0 };
                let more = ours[&pair("rounds", "api")] - 10;
                assert!(more == 0 || more == 10 && jumps && !library.contains(&"-fno-plt"), "{what}: {ours:#?}");
                assert_eq!(sum(&ours), sum(&expected) - lost + more, "{what}: {ours:#?}");
            }
        }
    }
}

fn pair(from: &str, to: &str) -> (String, String) {
    (from.to_owned(), to.to_owned())
}

/// The module may be the program: the library and the C library call it from outside.
fn calls_from_outside_of_the_program() {
    const OF_PROGRAM: [&str; 5] = ["rounds", "callback", "jumping", "nested", "by_value"];
    for flags in [&["-O2"][..], &["-O0"], &["-O2", "-no-pie", "-fno-pie"]] {
        let place = built(flags, &[]);
        for options in [&["--libs", "auto"][..], &["--libs", "auto", "--times"]] {
            same(&place, &[&["-q", "--outermost", "prog"], options].concat(), &[]);
            let mut calls = whole(&place);
            calls.retain(|(_, to), _| OF_PROGRAM.contains(&&**to));
            let expected = [
                ("each", "callback", 50),
                ("each", "jumping", 20),
                ("each", "nested", 10),
                ("jump_out", "callback", 10),
                ("jump_out", "jumping", 10),
                ("main", "by_value", 10),
            ];
            let expected: Calls = expected.iter().map(|&(from, to, count)| (pair(from, to), count)).collect();
            assert_eq!(calls, expected, "{flags:?} {options:?}");
        }
    }
}

/// A program with zlib: streams with allocators of its own, checksums, and a file that is written and read.
const ZLIB: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
static unsigned char in[1 << 14], out[1 << 15], back[1 << 14];
static void *take(void *none, unsigned n, unsigned size) { return calloc(n, size); }
static void give(void *none, void *at) { free(at); }
static void stream(int seed) {
    z_stream z = {.zalloc = take, .zfree = give}, y = {0};
    for (unsigned i = 0; i < sizeof in; i++) in[i] = (i * seed >> 3) ^ (i % (seed + 7));
    deflateInit(&z, 6);
    z.next_out = out;
    z.avail_out = sizeof out;
    for (unsigned at = 0; at < sizeof in; at += 1024) {
        z.next_in = in + at;
        z.avail_in = 1024;
        deflate(&z, Z_NO_FLUSH);
    }
    deflate(&z, Z_FINISH);
    unsigned long len = sizeof out - z.avail_out;
    deflateEnd(&z);
    inflateInit(&y);
    y.next_in = out;
    y.avail_in = len;
    y.next_out = back;
    y.avail_out = sizeof back;
    inflate(&y, Z_FINISH);
    inflateEnd(&y);
    uLongf n = sizeof out, m = sizeof back;
    compress(out, &n, in, sizeof in);
    uncompress(back, &m, out, n);
    if (memcmp(in, back, sizeof in)) abort();
}
int main(void) {
    unsigned long sum = 0;
    for (int i = 1; i <= 5; i++) {
        stream(i);
        for (int k = 0; k < 100; k++) sum += crc32(0, in, 16 + k);
        sum += adler32(1, in, sizeof in);
    }
    gzFile file = gzopen("lines.gz", "wb");
    for (int i = 0; i < 500; i++) gzprintf(file, "line %d\n", i);
    gzclose(file);
    file = gzopen("lines.gz", "rb");
    char line[100];
    int lines = 0;
    while (gzgets(file, line, sizeof line)) lines++;
    gzclose(file);
    printf("%lu %d\n", sum, lines);
    return 0;
}
"#;

fn zlib_as_callgrind_sees_it() {
    let place = Place::new();
    if !callgrind::available() {
        skip::skipped("outermost::zlib_as_callgrind_sees_it", "no valgrind");
        return;
    }
    if let Err(error) = place.compile("gcc", "prog", ZLIB, &["-g", "-lz"]) {
        let why = error.to_string();
        assert!(why.contains("zlib.h") || why.contains("-lz"), "{why}");
        skip::skipped("outermost::zlib_as_callgrind_sees_it", "no zlib to link with");
        return;
    }
    let before = std::env::current_dir().unwrap();
    let (profile, _) = callgrind::run(&place.path("prog"), &[], None).unwrap();
    let _ = std::fs::remove_file(before.join("lines.gz"));
    let is_zlib = |object: usize| profile.objects[object].contains("/libz.so");
    // Debian's zlib has no names but those that it exports, and no frame descriptions of its start and end code.
    let mut theirs: BTreeMap<String, u64> = BTreeMap::new();
    for call in &profile.calls {
        if is_zlib(call.callee.object) && !is_zlib(call.caller.object) && !call.callee.name.starts_with("0x") {
            *theirs.entry(call.callee.name.clone()).or_default() += call.count;
        }
    }
    assert!(theirs.len() > 10 && theirs["crc32"] == 500, "{theirs:?}");
    for options in [&[][..], &["--hooks", "entry"], &["--times"], &["--trace", "t.trace"]] {
        same(&place, &[&["-q", "--outermost", "libz.so.1"], options].concat(), &[]);
        let mut ours: BTreeMap<String, u64> = BTreeMap::new();
        for ((_, to), count) in whole(&place) {
            *ours.entry(to).or_default() += count;
        }
        let own: Vec<String> = ours.keys().filter(|name| !theirs.contains_key(*name)).cloned().collect();
        assert!(own.iter().all(|name| !name.starts_with("libz")), "{options:?}: {own:?}");
        ours.retain(|name, _| theirs.contains_key(name));
        assert_eq!(ours, theirs, "{options:?}");
    }
}

fn threads_count_calls_from_outside() {
    let place = built(&["-O2", "-DTHREADS=6"], &[]);
    for options in [&[][..], &["--times"]] {
        same(&place, &[&["-q", "--outermost", "libinner*"], options].concat(), &[]);
        assert_eq!(of_library(&place), expected(6), "{options:?}");
    }
}

fn plugins_count_calls_from_outside() {
    let place = with_plugins();
    for options in [&[][..], &["--times"]] {
        same(&place, &[&["-q", "--outermost", "zero.so,one.so"], options].concat(), &["0", "40"]);
        // `enter` calls the program's `count` 40 times, and so does each constructor.
        let expected = [("use", "enter", 40), ("enter", "work", 0), ("enter", "count", 40), ("begin", "count", 40)];
        has(&whole(&place), &expected, &format!("{options:?}"));
        same(&place, &[&["-q", "--outermost", "zero.so", "--outermost", "one.so"], options].concat(), &["4", "50"]);
        has(&whole(&place), &[("use", "enter", 200), ("enter", "work", 0)], &format!("{options:?} in threads"));
    }
}

/// Control runs on from one function into the next, whose thunk then must not use the memory below the stack pointer.
fn running_on_stays_inside() {
    const RUNS_ON: &str = r#"
asm(".text\n"
    ".globl first\n.type first, @function\nfirst: .cfi_startproc\nmov %rdi, -8(%rsp)\nmov %rdi, -16(%rsp)\nmov %rdi, -24(%rsp)\n"
    "add $1, %edi\nnop\nnop\n.cfi_endproc\n.size first, .-first\n"
    ".globl second\n.type second, @function\nsecond: .cfi_startproc\nmov %edi, %eax\nadd $1, %eax\nret\n"
    ".cfi_endproc\n.size second, .-second\n");
int first(int), second(int);
int (*volatile either[])(int) = {first, second};
int through(int x) { return either[0](x) + either[1](x) + first(x); }
"#;
    const USER: &str = r#"
#include <stdio.h>
int first(int), second(int), through(int);
int main(void) {
    int sum = 0;
    for (int i = 0; i < 20; i++) sum += first(i) + through(i);
    for (int i = 0; i < 30; i++) sum += second(i);
    printf("%d\n", sum);
    return 0;
}
"#;
    let place = Place::new();
    place.c("librun.so", RUNS_ON, &["-g", "-fPIC", "-shared"]);
    let library = place.path("librun.so");
    place.c("prog", USER, &["-g", library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    for hooks in Hooks::ALL {
        same(&place, &["-q", "--outermost", "librun.so", hooks.option()], &[]);
        let calls = whole(&place);
        let expected = [("main", "first", 20), ("main", "second", 30), ("main", "through", 20)];
        has(&calls, &expected, &format!("{hooks:?}"));
        assert!(!calls.keys().any(|(from, _)| ["through", "first"].contains(&&**from)), "{hooks:?}: {calls:?}");
    }
}

/// Prints a report as JSON.
fn report(place: &Place, args: &[&str]) -> Value {
    let mut command = Command::new(tool::gmon().unwrap());
    command.args(args).current_dir(place.folder.path());
    let outcome = finish(command);
    serde_json::from_str(&outcome.stdout_text()).unwrap_or_else(|error| panic!("{error}: {}", outcome.stderr_text()))
}

/// The calls by function in the rows of a report.
fn rows(report: &Value) -> BTreeMap<String, u64> {
    let rows = report["rows"].as_array().unwrap().iter();
    rows.map(|row| (row["name"].as_str().unwrap_or_default().to_owned(), row["calls"].as_u64().unwrap())).collect()
}

fn times_traces_and_values_of_calls_from_outside() {
    let place = built(&["-O2"], &[]);
    let mut expected_of: BTreeMap<String, u64> = BTreeMap::new();
    for ((_, to), count) in expected(1) {
        *expected_of.entry(to).or_default() += count;
    }
    let of_library = |mut rows: BTreeMap<String, u64>| {
        rows.retain(|name, _| OF_LIBRARY.contains(&&**name));
        rows
    };
    for options in [&["--times"][..], &["--paths"], &["--trace", "t.trace"], &["--trace", "t.trace", "--trace-depth", "9"]] {
        same(&place, &[&["-q", "--outermost", "libinner.so"], options].concat(), &[]);
        let measured = match options[0] {
            "--trace" => report(&place, &["trace", "--stats", "--json", "t.trace"]),
            _ => report(&place, &["flat", "--json"]),
        };
        assert_eq!(of_library(rows(&measured)), expected_of, "{options:?}");
    }
    // What the library does itself is in the times of the functions that were called from outside, which together take no longer than
    // what has called them.
    same(&place, &["-q", "--outermost", "libinner.so", "--times"], &[]);
    let recording = view::read(&place.path("gmon.pb.gz")).unwrap();
    let inclusive = |name: &str| {
        let is_it = |row: &&gmon_run::FunctionTimes| recording.functions[row.function as usize].name == name;
        recording.rows.iter().filter(is_it).map(|row| row.inclusive_ns).sum::<u64>()
    };
    assert!(inclusive("rounds") > 0 && inclusive("api") <= inclusive("rounds"));
    same(&place, &["-q", "--outermost", "libinner.so", "--values", "leaf@arg1/i32;api@arg1/i32"], &[]);
    let recording = view::read(&place.path("gmon.pb.gz")).unwrap();
    let kept = |name: &str| {
        let of = recording.values.iter().filter(|of| recording.functions[of.function as usize].name == name);
        of.flat_map(|of| &of.counts.kept).map(|kept| kept.count).sum::<u64>()
    };
    assert_eq!((kept("leaf"), kept("api")), (expected_of["leaf"], expected_of["api"]));
}

fn the_report_of_a_module() {
    let place = built(&["-O2"], &[]);
    let mut before = None;
    for options in [&["--outermost", "libinner.so"][..], &["--libs", "auto"]] {
        for times in [&[][..], &["--times"], &["--paths"]] {
            same(&place, &[&["-q"], options, times].concat(), &[]);
            let what = format!("{options:?} {times:?}");
            let report = report(&place, &["flat", "--by", "module", "--json"]);
            let rows = report["rows"].as_array().unwrap();
            let row = rows.iter().find(|row| row["module"].as_str().is_some_and(|path| path.ends_with("libinner.so")));
            let row = row.unwrap_or_else(|| panic!("{what}: {report}"));
            // The numbers are the same whether or not the calls within the module are counted. There are constructors and destructors besides.
            // The C library's calls of `compare` are charged to the library, which had called qsort.
            let [calls, from_outside] = ["calls", "from_outside"].map(|name| row[name].as_u64().unwrap());
            assert!(from_outside >= expected(1).values().sum::<u64>() - 10, "{what}: {row}");
            assert_eq!(*before.get_or_insert(from_outside), from_outside, "{what}: {row}");
            assert!(options[0] == "--libs" || calls == from_outside + 10, "{what}: {row}");
            if times.is_empty() {
                continue;
            }
            let number = |name: &str| row[name].as_u64().unwrap_or_else(|| panic!("{what}: {name}: {row}"));
            let total = report["total"]["self_ns"].as_u64().unwrap();
            assert!(number("self_ns") <= number("inclusive_ns") && number("inclusive_ns") <= total, "{what}: {row}");
            assert_eq!(number("inclusive_ns") + number("between_ns"), total, "{what}: {row}");
            // Paths tell which calls are within others.
            assert_eq!(row["inclusive_at_most"].as_bool(), Some(times == ["--times"]), "{what}: {row}");
        }
    }
}

/// Asks the gprofinject that profiles a process for something.
fn ask(subject: &Subject, pid: &str, words: &[&str]) {
    let mut command = subject.place.command(&[&["--pid", pid], words].concat());
    command.env("XDG_RUNTIME_DIR", subject.place.folder.path()).stdin(Stdio::null());
    let outcome = finish(command);
    assert_eq!(outcome.code(), 0, "{words:?}: {}", outcome.stderr_text());
}

fn started(options: &[&str]) -> Subject {
    let place = library_control::built("gcc");
    let mut command = place.command(options);
    command.arg("./prog").env("XDG_RUNTIME_DIR", place.folder.path());
    Subject::start(place, command)
}

/// Modules are switched off and on while the program runs, by their names.
fn modules_are_switched() {
    for options in [&["--outermost", "lib*"][..], &["--libs", "auto"], &["--outermost", "lib*", "--hooks", "entry"]] {
        let mut subject = started(options);
        let pid = profiled(&subject);
        tell(&mut subject, &["c 100"]);
        ask(&subject, &pid, &["--disable", "libfirst.so"]);
        tell(&mut subject, &["c 1000", "o 0", "l 5"]);
        ask(&subject, &pid, &["--enable", "libf*.so"]);
        tell(&mut subject, &["c 10"]);
        ask(&subject, &pid, &["--disable", "liblate.so"]);
        tell(&mut subject, &["c 1", "l 7"]);
        ask(&subject, &pid, &["--enable", "lib*!"]);
        tell(&mut subject, &["l 2"]);
        ask(&subject, &pid, &["--dump"]);
        let leaf = if options[0] == "--libs" { 333 } else { 0 };
        let expected = [("main", "own", 1111), ("own", "middle", 111), ("middle", "leaf", leaf), ("main", "late", 7)];
        has(&whole(&subject.place), &expected, &format!("{options:?}"));
        subject.finish();
    }
}

/// gprofinject attaches to a process, pauses and resumes it, and leaves it as it was.
fn a_running_process() {
    for options in [&["--outermost", "lib*"][..], &["--outermost", "lib*", "--hooks=entry"]] {
        let mut subject = alone("gcc");
        tell(&mut subject, &["c 7", "o 0", "l 9", "s 0"]);
        let before = subject.code();
        let attached = subject.attached(options);
        let pid = subject.pid().to_string();
        controlled(&mut subject, &pid);
        let expected = [("main", "own", 110), ("own", "middle", 110), ("middle", "leaf", 0), ("main", "late", 6)];
        has(&whole(&subject.place), &expected, &format!("{options:?}"));
        tell(&mut subject, &["c 5", "s 0"]);
        let (code, said) = attached.end("-INT");
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(subject.changed(&before), None, "{said}");
        assert!(subject.is_clean(), "{said}");
        subject.finish();
    }
}

fn what_cannot_be_combined() {
    let place = built(&["-O2"], &[]);
    for (options, advice) in [
        (&["--count", "blocks"][..], "run gprofinject twice"),
        (&["--clock", "instructions"], "run gprofinject twice"),
        (&["--hooks", "none"], "omit --hooks"),
        (&["--outermost", "a["], "not a pattern"),
        (&["--outermost", ""], "a pattern is empty"),
    ] {
        let refused = place.run(&[&["--outermost", "libinner.so"], options, &["./prog"]].concat());
        let said = refused.stderr_text();
        assert!(refused.code() != 0 && said.contains(advice), "{options:?}: {said}");
        assert!(refused.stdout.is_empty() && !Path::new(&place.path("gmon.out")).exists(), "{options:?}: {said}");
    }
    let unused = place.run(&["--outermost", "libinner.so,libnone*", "./prog"]);
    assert!(unused.stderr_text().contains("--outermost 'libnone*' matches neither"), "{}", unused.stderr_text());
}
