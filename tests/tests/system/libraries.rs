//! The libraries of a process: their own calls, and calls between them, the program and code that is not hooked.
//!
//! The expected arcs follow from the sources here; `callgrind_agrees` compares all calls of such programs, in all modules,
//! with callgrind's. The program's own view must not depend on which libraries are hooked.

use std::collections::BTreeMap;
use std::path::Path;

use gprofinject_skip as skip;
use gprofinject_tests::callgrind;
use gprofinject_tests::elf::Program;
use gprofinject_tests::gprofdata;
use gprofinject_tests::place::{Place, finish};
use gprofinject_tests::run::Outcome;
use gprofinject_tests::view;
use gprofinject_tests::tool::Hooks;

gprofinject_tests::trials! {
    together:
        calls_across_modules,
        running_on_is_no_call,
        callgrind_agrees,
        exceptions_and_jumps_across_modules,
        a_selection_by_module,
        a_library_of_two_names,
        samples_in_libraries,
        children_with_libraries;
}

/// Calls within a library, between libraries, back into the program, by tail calls in both directions, and through
/// functions of the C library, which is not hooked.
const LOW: &str = r"
#include <stdlib.h>
#define NOINLINE __attribute__((noinline))
int leaf(int x) { return x * 3; }
static NOINLINE int inner(int x) { return leaf(x) + 1; }
int low(int x) { return inner(x) + inner(x + 1); }
static int compare(const void *a, const void *b) { return *(int *)a - *(int *)b; }
void sort(int *v, int n) { qsort(v, n, sizeof *v, compare); }
static int visits;
static NOINLINE void made(void) { visits++; }
__attribute__((constructor)) static void begin(void) { made(); }
";
const HIGH: &str = r"
#define NOINLINE __attribute__((noinline))
int low(int);
int each(int n, int (*f)(int)) { int s = 0; for (int i = 0; i < n; i++) s += f(i) + low(i); return s; }
int tail(int n, int (*f)(int)) { return each(n, f); }
int back(int (*f)(int), int x) { return f(x); }
";
const MAIN: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#define NOINLINE __attribute__((noinline))
int low(int), each(int, int (*)(int)), tail(int, int (*)(int)), back(int (*)(int), int);
void sort(int *, int);
NOINLINE int helper(int x) { return x ^ 1; }
NOINLINE int own(const void *a, const void *b) { return *(int *)a - *(int *)b; }
NOINLINE int callback(int x) { return helper(x) + low(x); }
NOINLINE int sorting(int x) { int v[2] = {x + 1, x}; qsort(v, 2, sizeof *v, own); return v[0]; }
NOINLINE int jump(int n) { return tail(n, callback); }
int main(void) {
    int v[2] = {2, 1};
    long s = 0;
    sort(v, 2);
    for (int i = 0; i < 100; i++) s += low(i);
    s += each(10, callback) + jump(5) + each(3, sorting) + back(helper, 7);
    printf("%ld %d\n", s, v[0]);
    return 0;
}
"#;

pub(crate) const ARCS: &[(&str, &str, u64)] = &[
    ("main", "sort", 1),
    ("sort", "compare", 1),
    ("begin", "made", 1),
    ("main", "low", 100),
    ("each", "low", 18),
    ("callback", "low", 15),
    ("low", "inner", 266),
    ("inner", "leaf", 266),
    ("main", "each", 2),
    ("tail", "each", 1),
    ("jump", "tail", 1),
    ("main", "jump", 1),
    ("each", "callback", 15),
    ("callback", "helper", 15),
    ("each", "sorting", 3),
    ("sorting", "own", 3),
    ("main", "back", 1),
    ("back", "helper", 1),
];

/// Builds a program with two libraries.
pub(crate) fn built(flags: &[&str]) -> Place {
    built_by("gcc", flags)
}

/// Builds them with another compiler of C.
pub(crate) fn built_by(compiler: &str, flags: &[&str]) -> Place {
    let place = Place::new();
    let compile = |name: &str, source: &str, flags: &[&str]| {
        place.compile(compiler, name, source, flags).unwrap();
    };
    compile("liblow.so", LOW, &[flags, &["-g", "-fPIC", "-shared"]].concat());
    let low = place.path("liblow.so");
    let low = low.to_str().unwrap();
    compile("libhigh.so", HIGH, &[flags, &["-g", "-fPIC", "-shared", low, "-Wl,-rpath,$ORIGIN"]].concat());
    let high = place.path("libhigh.so");
    let libraries = [low, high.to_str().unwrap(), "-Wl,-rpath,$ORIGIN", "-Wl,-z,now"];
    compile("prog", MAIN, &[flags, &["-g"], &libraries].concat());
    place
}

/// Runs the program alone and under gprofinject with these options, and checks that it prints and returns the same.
pub(crate) fn same(place: &Place, options: &[&str], args: &[&str]) -> Outcome {
    same_with(place, &[], options, args)
}

/// The same with variables of the environment.
pub(crate) fn same_with(
    place: &Place,
    environment: &[(&str, &Path)],
    options: &[&str],
    args: &[&str],
) -> Outcome {
    let mut alone = std::process::Command::new(place.path("prog"));
    alone.args(args).current_dir(place.folder.path()).envs(environment.iter().copied());
    let alone = finish(alone);
    let mut profiled = place.command(&[options, &["./prog"], args].concat());
    profiled.envs(environment.iter().copied());
    let outcome = finish(profiled);
    let said = outcome.stderr_text();
    assert_eq!(outcome.stdout_text(), alone.stdout_text(), "{options:?}: {said}");
    assert_eq!(outcome.code(), alone.code(), "{options:?}: {said}");
    outcome
}

/// The calls of the whole process, by the names of caller and called function without their modules.
pub(crate) fn whole(place: &Place) -> BTreeMap<(String, String), u64> {
    whole_of(place, |_| true)
}

/// The same of some programs.
pub(crate) fn whole_of(place: &Place, is_wanted: impl Fn(&gmon_run::Program) -> bool) -> BTreeMap<(String, String), u64> {
    let [symbols, whole] = view::written_of(&place.path("gmon.pb.gz"), is_wanted).unwrap();
    let (program, profile) = (Program::read(&symbols).unwrap(), gprofdata::read(&whole).unwrap());
    let name = |address| {
        let function = program.containing(address).unwrap_or_else(|| panic!("nothing at {address:#x}"));
        function.name().split('@').next().unwrap().to_owned()
    };
    let mut calls = BTreeMap::new();
    for (&(from, to), &count) in &profile.arcs {
        *calls.entry((name(from), name(to))).or_default() += count;
    }
    calls
}

/// The arcs of the program's own view.
pub(crate) fn own(place: &Place) -> BTreeMap<(u64, u64), u64> {
    gprofdata::read(&place.path("gmon.out")).unwrap().arcs
}

/// Checks some calls, by name.
pub(crate) fn has(calls: &BTreeMap<(String, String), u64>, expected: &[(&str, &str, u64)], what: &str) {
    for &(from, to, count) in expected {
        let found = calls.get(&(from.to_owned(), to.to_owned())).copied().unwrap_or(0);
        assert_eq!(found, count, "{what}: {from} -> {to}: {calls:#?}");
    }
}

fn calls_across_modules() {
    for flags in [&["-O2"][..], &["-O0"], &["-Os", "-fcf-protection"], &["-O2", "-fno-plt", "-fno-pie", "-no-pie"]] {
        let place = built(flags);
        for hooks in [Hooks::Both, Hooks::Entry] {
            same(&place, &["-q", "--libs", "none", hooks.option()], &[]);
            let alone = own(&place);
            same(&place, &["-q", "--libs", "auto", hooks.option()], &[]);
            let what = format!("{flags:?} {hooks:?}");
            let calls = whole(&place);
            let is_known = |callee: &str| hooks == Hooks::Both || !["compare", "own"].contains(&callee);
            let tail = ["-O0"] == *flags || hooks == Hooks::Both;
            let expected: Vec<_> = ARCS.iter().copied().filter(|&(_, callee, _)| is_known(callee)).collect();
            // Without exit hooks, a call by a jump has the caller to which the function will return.
            let by_jump = |&&(from, to, _): &&(&str, &str, u64)| {
                !tail && matches!((from, to), ("tail", "each") | ("jump", "tail") | ("begin", "made") | ("back", "helper"))
            };
            let (_, expected): (Vec<_>, Vec<_>) = expected.iter().partition(by_jump);
            let expected: Vec<_> = expected.into_iter().copied().filter(|arc| tail || arc.1 != "each").collect();
            has(&calls, &expected, &what);
            if hooks == Hooks::Both {
                assert_eq!(own(&place), alone, "{what}: the program's own view");
            }
        }
    }
}

/// Control runs on from the end of a library's function into the next one: that is no call, also if the first function was
/// called from another module.
fn running_on_is_no_call() {
    const LIBRARY: &str = r#"
asm(".text\n"
    ".globl first\n.type first, @function\nfirst: .cfi_startproc\nadd $1, %edi\nnop\nnop\n.cfi_endproc\n.size first, .-first\n"
    ".globl second\n.type second, @function\nsecond: .cfi_startproc\nmov %edi, %eax\nadd $1, %eax\nret\n"
    ".cfi_endproc\n.size second, .-second\n");
"#;
    const USER: &str = r#"
#include <stdio.h>
int first(int), second(int);
int (*volatile by_pointer[])(int) = {first, second, second};
int main(void) {
    int sum = 0;
    for (int i = 0; i < 20; i++) sum += first(i);
    for (int i = 0; i < 30; i++) sum += second(i) + by_pointer[i % 3](i);
    printf("%d\n", sum);
    return 0;
}
"#;
    for flags in [&["-O2"][..], &["-O0", "-fno-plt"]] {
        let place = Place::new();
        place.c("librun.so", LIBRARY, &["-g", "-fPIC", "-shared"]);
        let library = place.path("librun.so");
        let library = [library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"];
        place.c("prog", USER, &[flags, &["-g"], &library].concat());
        for hooks in Hooks::ALL {
            same(&place, &["-q", "--libs", "auto", hooks.option()], &[]);
            let expected = [("main", "first", 30), ("main", "second", 50), ("first", "second", 0)];
            has(&whole(&place), &expected, &format!("{flags:?} {hooks:?}"));
        }
    }
}

/// Compares all calls between functions with names, in all modules that are hooked, with callgrind's.
pub(crate) fn agrees(place: &Place, modules: &[&str], args: &[&str]) {
    let program = place.path("prog");
    let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
    let (profile, _) = callgrind::run(&program, &args, None).unwrap();
    let is_hooked = |object: usize| modules.iter().any(|module| profile.objects[object].ends_with(module));
    let plain = |name: &str| name.split('\'').next().unwrap_or(name).to_owned();
    let mut theirs: BTreeMap<(String, String), u64> = BTreeMap::new();
    let has_name = |name: &str| !name.starts_with("0x");
    for call in profile.calls.iter().filter(|call| has_name(&call.caller.name) && has_name(&call.callee.name)) {
        if is_hooked(call.caller.object) && is_hooked(call.callee.object) {
            *theirs.entry((plain(&call.caller.name), plain(&call.callee.name))).or_default() += call.count;
        }
    }
    assert!(theirs.len() > 5, "{theirs:?}");
    let ours = whole(place);
    for (pair, count) in &theirs {
        assert_eq!(ours.get(pair), Some(count), "{pair:?}: {ours:#?}");
    }
}

fn callgrind_agrees() {
    if !callgrind::available() {
        skip::skipped("libraries::callgrind_agrees", "no valgrind");
        return;
    }
    for flags in [&["-O2"][..], &["-O0"], &["-O3", "-fno-plt"]] {
        let place = built(flags);
        same(&place, &["-q", "--libs", "auto"], &[]);
        agrees(&place, &["prog", "liblow.so", "libhigh.so"], &[]);
    }
}

fn exceptions_and_jumps_across_modules() {
    const THROWER: &str = r#"
#include <setjmp.h>
#include <stdexcept>
extern "C" __attribute__((noinline)) void thrower(int x) { if (x % 3 == 0) throw std::runtime_error("x"); }
extern "C" int through(int (*f)(int), int x) { int r = f(x); thrower(r); return r; }
extern "C" int catcher(int (*f)(int), int x) { try { return f(x); } catch (std::exception &) { return -1; } }
extern "C" __attribute__((noinline)) void jumper(jmp_buf *b, int x) { if (x & 1) longjmp(*b, x); }
"#;
    const USER: &str = r#"
#include <csetjmp>
#include <cstdio>
#include <stdexcept>
extern "C" { void thrower(int); int through(int (*)(int), int); int catcher(int (*)(int), int); void jumper(jmp_buf *, int); }
__attribute__((noinline)) int same(int x) { return x; }
__attribute__((noinline)) int nested(int x) { return through(same, x); }
__attribute__((noinline)) int jumping(int x) {
    jmp_buf b;
    if (int y = setjmp(b)) return y;
    jumper(&b, x);
    return 0;
}
int main() {
    int caught = 0, sum = 0;
    for (int i = 0; i < 30; i++) {
        try { sum += nested(i); } catch (std::runtime_error &) { caught++; }
        sum += catcher(nested, i) + jumping(i);
    }
    std::printf("%d %d\n", caught, sum);
}
"#;
    let place = Place::new();
    let library = place.compile("g++", "libthrow.so", THROWER, &["-xc++", "-g", "-fPIC", "-shared"]).unwrap();
    let flags = ["-xc++", "-g", "-xnone", library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"];
    place.compile("g++", "prog", USER, &flags).unwrap();
    same(&place, &["-q", "--libs", "none"], &[]);
    let alone = own(&place);
    for libs in ["auto", "all"] {
        same(&place, &["-q", "--libs", libs], &[]);
        let calls = whole(&place);
        let name = |name: &str| calls.keys().find(|(_, to)| to.contains(name)).unwrap().1.clone();
        let (same, nested, jumping) = (name("same"), name("nested"), name("jumping"));
        let expected = [
            ("main", nested.as_str(), 30),
            ("catcher", &nested, 30),
            ("through", &same, 60),
            (&nested, "through", 60),
            ("through", "thrower", 60),
            ("main", &jumping, 30),
            (&jumping, "jumper", 30),
        ];
        has(&calls, &expected, libs);
        assert_eq!(own(&place), alone, "{libs}: the program's own view");
    }
}

fn a_selection_by_module() {
    let place = built(&["-O2"]);
    same(&place, &["-q", "--libs", "liblow*", "-X", "liblow.so!inner"], &[]);
    let calls = whole(&place);
    let is_called = |name: &str| calls.keys().any(|(_, to)| to == name);
    assert!(is_called("low") && is_called("helper") && !is_called("inner") && !is_called("each"), "{calls:#?}");
    // What `each`, which is not hooked, calls is charged to the newest hooked function that is running.
    has(&calls, &[("main", "low", 113), ("low", "leaf", 266)], "without inner");
    same(&place, &["-q", "--libs", "auto", "-I", "libhigh*!*", "-I", "low"], &[]);
    let calls = whole(&place);
    let is_called = |name: &str| calls.keys().any(|(_, to)| to == name);
    assert!(is_called("low") && is_called("each") && !is_called("leaf") && !is_called("helper"), "{calls:#?}");
    for (pattern, tip) in [
        ("loww", "tip: similar names: 'low'"),
        ("libhigh.so!loww", "tip: similar names: 'low'"),
        ("libc.so.6!malloc", "tip: add --libs libc.so.6"),
        ("nothing_like_it", "tip: for a library that is loaded later, write -I '*!nothing_like_it'"),
    ] {
        let refused = place.run(&["-o", "refused.out", "-I", "main", "-I", pattern, "./prog"]);
        let said = refused.stderr_text();
        assert!(refused.code() == 125 && said.contains(pattern) && said.contains(tip), "{pattern}: {said}");
        assert!(refused.stdout.is_empty() && said.lines().count() == 2, "{pattern}: {said}");
        assert!(!place.path("refused.out").exists(), "{pattern}: it has run: {said}");
    }
    // These may match what comes later.
    for pattern in ["libnone.so!*", "*!nothing_like_it"] {
        let later = same(&place, &["-I", "main", "-I", pattern], &[]);
        assert!(later.stderr_text().contains("matches no function"), "{pattern}: {}", later.stderr_text());
    }
    let unused = place.run(&["--libs", "auto", "-X", "libnone.so!*", "./prog"]);
    assert!(unused.stderr_text().contains("libnone.so!*"), "{}", unused.stderr_text());
    let unused = place.run(&["--libs", "liblow*,libnone*", "./prog"]);
    assert!(unused.stderr_text().contains("--libs 'libnone*' matches no library"), "{}", unused.stderr_text());
}

/// The name of a library's file, and the one by which a program needs it.
fn a_library_of_two_names() {
    let place = Place::new();
    place.c("libtwo.so.1.2.3", "int two(int x) { __asm__ volatile(\"nop; nop; nop\"); return x + 2; }", &["-fPIC", "-shared", "-Wl,-soname,libtwo.so.1"]);
    std::os::unix::fs::symlink("libtwo.so.1.2.3", place.path("libtwo.so.1")).unwrap();
    let library = place.path("libtwo.so.1.2.3");
    let source = "int two(int); int main(void) { return two(two(-4)); }";
    place.c("prog", source, &[library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    for options in [
        &["--libs", "libtwo.so.1"][..],
        &["--libs", "libtwo.so.1.2.3"],
        &["-I", "libtwo.so.1!two", "-I", "prog!main"],
        &["-I", "libtwo.so.1.*!*", "-I", "!main"],
    ] {
        same(&place, &[&["-q"], options].concat(), &[]);
        has(&whole(&place), &[("main", "two", 2)], &format!("{options:?}"));
    }
}

fn samples_in_libraries() {
    const BUSY: &str = r#"
#include <stdio.h>
#include <time.h>
// Each step waits for the product of the last one, so that it takes the same time wherever the loop lies. (A loop whose counter
// is in memory does not: on some processors one runs five times as fast as another of the same instructions.)
static void steps(unsigned n) {
    unsigned product = 3;
    __asm__ volatile("1: imul %0, %0; imul %0, %0; dec %1; jnz 1b" : "+r"(product), "+r"(n) : : "cc");
}
__attribute__((noinline)) static void heavy(unsigned n) { steps(90 * n); }
__attribute__((noinline)) static void light(unsigned n) { steps(10 * n); }
// Rounds are of different lengths, so that samples, which come at equal intervals, do not meet the same place each time.
void busy(void) {
    unsigned random = 1;
    // The longest round, in microseconds of CPU time.
    long longest = 0;
    for (clock_t now, last = clock(); (now = clock()) < CLOCKS_PER_SEC / 2; last = now) {
        if (now - last > longest) longest = now - last;
        random = random * 1103515245 + 12345;
        unsigned n = 500 + (random >> 22);
        heavy(n);
        light(n);
    }
    FILE *file = fopen("longest", "w");
    fprintf(file, "%ld", longest);
    fclose(file);
}
"#;
    let place = Place::new();
    place.c("libbusy.so", BUSY, &["-g", "-O2", "-fPIC", "-shared"]);
    let library = place.path("libbusy.so");
    place.c("prog", "void busy(void); int main(void) { busy(); return 0; }", &[library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    for (libs, sampler) in [("auto", "perf"), ("auto", "timer"), ("none", "perf"), ("others*", "timer")] {
        // A virtual machine that stands still for a moment does so inside one of the two functions, which has all the periods of that
        // moment. The longest round tells of it, which otherwise takes less than a millisecond.
        const STOOD_STILL: u64 = 20_000;
        const MOST_RUNS: u32 = 5;
        for run in 1..=MOST_RUNS {
            let outcome = same(&place, &["--libs", libs, "--sampler", sampler], &[]);
            if outcome.stderr_text().contains("no samples are taken") {
                skip::skipped("libraries::samples_in_libraries", "no perf events");
                return;
            }
            let longest = std::fs::read_to_string(place.path("longest")).unwrap();
            let is_judged = run == MOST_RUNS || longest.parse::<u64>().unwrap() < STOOD_STILL;
            let [symbols, whole] = view::written(&place.path("gmon.pb.gz")).unwrap();
            let (program, profile) = (Program::read(&symbols).unwrap(), gprofdata::read(&whole).unwrap());
            let of = |name: &str| {
                let function = program.named(name).unwrap();
                profile.samples_in(function.address, function.size)
            };
            let (heavy, light, all) = (of("heavy"), of("light"), profile.samples());
            let holds = heavy > 3 * light && heavy * 2 > all;
            assert!(holds || !is_judged, "--libs {libs} --sampler {sampler}: {heavy} and {light} of {all}");
            if is_judged {
                break;
            }
        }
    }
}

fn children_with_libraries() {
    const FORKING: &str = r#"
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int low(int);
int main(void) {
    int s = low(1);
    fflush(stdout);
    if (fork() == 0) { for (int i = 0; i < 10; i++) s += low(i); _exit(s & 1); }
    wait(0);
    printf("%d\n", s);
    return 0;
}
"#;
    let place = built(&["-O2"]);
    let low = place.path("liblow.so");
    place.c("prog", FORKING, &[low.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    same(&place, &["-q", "--libs", "auto"], &[]);
    has(&whole(&place), &[("main", "low", 11), ("low", "inner", 22)], "both");
    let files = || std::fs::read_dir(place.folder.path()).unwrap().count();
    let before = files();
    same(&place, &["-q", "--libs", "auto", "--per-process"], &[]);
    assert_eq!(files(), before, "the child's profile is in the recording");
    let recording = view::read(&place.path("gmon.pb.gz")).unwrap();
    let pids: Vec<u32> = recording.programs.iter().map(|program| program.pid).collect();
    assert!(pids.len() == 2 && !pids.contains(&0), "{pids:?}");
    has(&whole_of(&place, |program| program.pid == pids[0]), &[("main", "low", 1), ("low", "inner", 2)], "the parent");
    has(&whole_of(&place, |program| program.pid == pids[1]), &[("main", "low", 10), ("low", "inner", 20)], "the child");
    assert!(Path::new(&place.path("gmon.out")).exists());
}
