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
use gprofinject_tests::tool::Hooks;

gprofinject_tests::trials! {
    together:
        calls_across_modules,
        running_on_is_no_call,
        callgrind_agrees,
        plugins_that_come_and_go,
        plugins_in_threads,
        plugins_beside_a_hooked_dynamic_linker,
        a_namespace_of_its_own,
        exceptions_and_jumps_across_modules,
        the_dynamic_linker_itself,
        thread_local_variables_by_descriptors,
        the_c_library_itself,
        a_selection_by_module,
        a_library_of_two_names,
        samples_in_libraries,
        children_with_libraries,
        the_list_has_all_modules,
        only_the_systems_dynamic_linker_is_asked,
        what_is_not_hooked_is_named;
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

const ARCS: &[(&str, &str, u64)] = &[
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
fn built(flags: &[&str]) -> Place {
    let place = Place::new();
    place.c("liblow.so", LOW, &[flags, &["-g", "-fPIC", "-shared"]].concat());
    let low = place.path("liblow.so");
    let low = low.to_str().unwrap();
    place.c("libhigh.so", HIGH, &[flags, &["-g", "-fPIC", "-shared", low, "-Wl,-rpath,$ORIGIN"]].concat());
    let high = place.path("libhigh.so");
    let libraries = [low, high.to_str().unwrap(), "-Wl,-rpath,$ORIGIN", "-Wl,-z,now"];
    place.c("prog", MAIN, &[flags, &["-g"], &libraries].concat());
    place
}

/// Runs the program alone and under gprofinject with these options, and checks that it prints and returns the same.
fn same(place: &Place, options: &[&str], args: &[&str]) -> Outcome {
    let mut alone = std::process::Command::new(place.path("prog"));
    alone.args(args).current_dir(place.folder.path());
    let alone = finish(alone);
    let outcome = place.run(&[options, &["./prog"], args].concat());
    let said = outcome.stderr_text();
    assert_eq!(outcome.stdout_text(), alone.stdout_text(), "{options:?}: {said}");
    assert_eq!(outcome.code(), alone.code(), "{options:?}: {said}");
    outcome
}

/// The calls of the whole process, by the names of caller and called function without their modules.
pub(crate) fn whole(place: &Place) -> BTreeMap<(String, String), u64> {
    let program = Program::read(&place.path("gmon.syms")).unwrap();
    let profile = gprofdata::read(&place.path("gmon.whole")).unwrap();
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
fn own(place: &Place) -> BTreeMap<(u64, u64), u64> {
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
fn agrees(place: &Place, modules: &[&str], args: &[&str]) {
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

const PLUGIN: &str = r"
#define NOINLINE __attribute__((noinline))
extern void count(int);
static NOINLINE int work(int x) { return x + WHICH; }
int enter(int x) { int s = 0; for (int i = 0; i < 3; i++) s += work(x + i); count(WHICH); return s; }
__attribute__((constructor)) static void begin(void) { count(WHICH); }
";
const HOST: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static long counted[2];
__attribute__((noinline)) void count(int which) { __atomic_add_fetch(&counted[which], 1, __ATOMIC_RELAXED); }
__attribute__((noinline)) static int use(const char *name, int flags) {
    void *library = dlopen(name, flags);
    if (!library) { puts(dlerror()); exit(9); }
    int (*enter)(int) = dlsym(library, "enter");
    int result = enter(1);
    dlclose(library);
    return result;
}
static int times;
static void *thread(void *name) {
    long sum = 0;
    for (int i = 0; i < times; i++) sum += use(name, i % 2 ? RTLD_NOW : RTLD_LAZY);
    return (void *)sum;
}
int main(int argc, char **argv) {
    int threads = atoi(argv[1]);
    times = atoi(argv[2]);
    if (threads == 0) {
        long sum = 0;
        for (int i = 0; i < times; i++) sum += use(i % 2 ? "./one.so" : "./zero.so", RTLD_NOW);
        printf("%ld\n", sum);
    } else {
        pthread_t all[16];
        long sum = 0;
        for (int i = 0; i < threads; i++) pthread_create(&all[i], 0, thread, i % 2 ? "./one.so" : "./zero.so");
        for (int i = 0; i < threads; i++) { void *part; pthread_join(all[i], &part); sum += (long)part; }
        printf("%ld\n", sum);
    }
    FILE *file = fopen("counts", "w");
    fprintf(file, "%ld %ld\n", counted[0], counted[1]);
    fclose(file);
    return 0;
}
"#;

fn with_plugins() -> Place {
    let place = Place::new();
    place.c("zero.so", PLUGIN, &["-g", "-fPIC", "-shared", "-DWHICH=0"]);
    place.c("one.so", PLUGIN, &["-g", "-fPIC", "-shared", "-DWHICH=1"]);
    place.c("prog", HOST, &["-g", "-rdynamic", "-pthread", "-ldl"]);
    place
}

/// Checks the counts of plugins against the program's own counters. `each` is how often each plugin was entered.
fn plugins_are_counted(place: &Place, each: u64) {
    let counts = std::fs::read_to_string(place.path("counts")).unwrap();
    let total: u64 = counts.split_whitespace().map(|count| count.parse::<u64>().unwrap()).sum();
    let calls = whole(place);
    has(&calls, &[("use", "enter", 2 * each), ("enter", "work", 6 * each), ("enter", "count", 2 * each)], "plugins");
    let begun = calls.get(&("begin".to_owned(), "count".to_owned())).copied().unwrap_or(0);
    assert_eq!(begun + 2 * each, total, "{calls:#?}");
}

fn plugins_that_come_and_go() {
    let place = with_plugins();
    same(&place, &["-q", "--libs", "none"], &["0", "40"]);
    let alone = own(&place);
    let outcome = same(&place, &["-v", "--libs", "auto"], &["0", "40"]);
    assert!(!outcome.stderr_text().contains("not hooked"), "{}", outcome.stderr_text());
    plugins_are_counted(&place, 20);
    assert_eq!(own(&place), alone, "the program's own view");
}

/// With `--hooks`, the dynamic linker is hooked like any other library. It still tells the agent what it loads.
fn plugins_beside_a_hooked_dynamic_linker() {
    let place = with_plugins();
    for hooks in Hooks::ALL {
        same(&place, &["-q", "--libs", "all", hooks.option()], &["0", "40"]);
        plugins_are_counted(&place, 20);
    }
}

fn plugins_in_threads() {
    let place = with_plugins();
    same(&place, &["-q", "--libs", "auto"], &["4", "250"]);
    plugins_are_counted(&place, 500);
}

fn a_namespace_of_its_own() {
    const USER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
__attribute__((noinline)) static int call(int (*enter)(int)) { int r = enter(1); return r + enter(2); }
int main(void) {
    void *library = dlmopen(LM_ID_NEWLM, "./alone.so", RTLD_NOW);
    if (!library) { puts(dlerror()); return 9; }
    printf("%d\n", call(dlsym(library, "enter")));
    return 0;
}
"#;
    const ALONE: &str = r"
static __attribute__((noinline)) int work(int x) { return x + 1; }
int enter(int x) { return work(x) * work(x + 1); }
";
    let place = Place::new();
    place.c("alone.so", ALONE, &["-g", "-fPIC", "-shared"]);
    place.c("prog", USER, &["-g", "-ldl"]);
    same(&place, &["-q", "--libs", "auto"], &[]);
    has(&whole(&place), &[("call", "enter", 2), ("enter", "work", 4)], "a namespace");
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

/// The dynamic linker is hooked like the libraries that it loads and unloads, in threads, with lazy binding.
fn the_dynamic_linker_itself() {
    let place = with_plugins();
    place.c("prog", HOST, &["-g", "-rdynamic", "-pthread", "-ldl", "-Wl,-z,lazy"]);
    for hooks in [Hooks::Both, Hooks::Entry] {
        same(&place, &["-q", "--libs", "none", hooks.option()], &["0", "40"]);
        let alone = own(&place);
        same(&place, &["-q", "--libs", "all", hooks.option()], &["0", "40"]);
        assert_eq!(own(&place), alone, "{hooks:?}: the program's own view");
        let outcome = same(&place, &["-v", "--libs", "all", hooks.option()], &["4", "250"]);
        plugins_are_counted(&place, 500);
        // Without a debug package, its functions have no names.
        if !outcome.stderr_text().contains("no-names") {
            let calls = whole(&place);
            let called = |name: &str| -> u64 {
                calls.iter().filter(|((_, to), _)| to == name).map(|(_, count)| count).sum()
            };
            assert_eq!((called("_dl_open"), called("_dl_close")), (1000, 1000), "{hooks:?}: {calls:#?}");
        }
    }
    let list = place.run(&["--list", "--libs", "all", "./prog"]).stdout_text();
    let module = list.lines().find_map(|line| line.split_once("/ld-linux-x86-64.so.2:"));
    let linker = listed(&list, &format!("{}/ld-linux-x86-64.so.2:", module.unwrap().0));
    assert!(linker.len() > 100, "{list}");
    if linker.iter().all(|line| !line.contains("no-names")) {
        let hooked = linker.iter().filter(|line| !line.contains("refused")).count();
        assert!(hooked * 10 > linker.len() * 9, "{linker:#?}");
        let refused = |name: &str| {
            linker.iter().any(|line| line.contains(name) && line.contains("refused: agent"))
        };
        assert!(refused("_dl_debug_state") && refused("_dl_find_object"), "{linker:#?}");
    }
}

/// Functions that find thread-local variables by TLS descriptors change few registers. So their callers keep values in r10
/// and r11, and the dynamic linker's part of it must leave all registers alone.
fn thread_local_variables_by_descriptors() {
    const FINDS: &str = r"
#define NOINLINE __attribute__((noinline))
__thread int x[LEN];
extern __thread int absent __attribute__((weak));
static NOINLINE int bump(int i) { return x[i & 7] += i; }
static NOINLINE int is_absent(int i) { return i - (&absent == 0); }
#define GET(NAME, FIND) long NAME(const long *v, long a, long b, long c, long d, long e) { \
    long f = v[0], g = v[1], h = v[2], k = v[3], s = 0; \
    for (int i = 0; i < 10; i++) s += FIND(i) + (a ^ f) + (b ^ g) + (c ^ h) + (d ^ k) + e; \
    return s + a * b * c + d * e + f * g + h * k; \
}
GET(get, bump)
GET(get_absent, is_absent)
";
    const USER: &str = r#"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
static long (*get)(const long *, long, long, long, long, long), (*get_absent)(const long *, long, long, long, long, long);
static void *run(void *unused) {
    long v[4] = {11, 222, 3333, 44444}, s = 0;
    for (int i = 0; i < 50; i++) s = s * 3 + get(v, i, 5, 6, 7, 8) + get_absent(v, i, 5, 6, 7, 8);
    return (void *)s;
}
int main(int argc, char **argv) {
    pthread_t all[4];
    void *library = dlopen(argv[1], RTLD_NOW), *part;
    if (!library) { puts(dlerror()); return 9; }
    get = dlsym(library, "get");
    get_absent = dlsym(library, "get_absent");
    for (int i = 0; i < 4; i++) pthread_create(&all[i], 0, run, 0);
    printf("%ld\n", (long)run(0));
    for (int i = 0; i < 4; i++) { pthread_join(all[i], &part); printf("%ld\n", (long)part); }
    return 0;
}
"#;
    const DIALECT: &str = "-mtls-dialect=gnu2";
    if !skip::can_compile_for("libraries::thread_local_variables_by_descriptors", "gcc", &[DIALECT]) {
        return;
    }
    let place = Place::new();
    place.c("prog", USER, &["-g", "-pthread", "-ldl"]);
    // The variable of the second library has no room in the space that every thread has from the start, so that its
    // descriptor leads to another function.
    for (library, len) in [("./few.so", "-DLEN=8"), ("./many.so", "-DLEN=4000")] {
        let flags = ["-g", "-O2", "-fPIC", "-shared", DIALECT, len];
        let file = place.c(library, FINDS, &flags);
        if skip::have("objdump") {
            let listing = std::process::Command::new("objdump").arg("-d").arg(file).output().unwrap();
            let code = String::from_utf8_lossy(&listing.stdout);
            assert!(code.contains("*(%rax)") && code.contains("%r11"), "{code}");
        }
        for (hooks, libs) in
            [(Hooks::Both, "auto"), (Hooks::Entry, "auto"), (Hooks::Both, "all"), (Hooks::Entry, "all")]
        {
            same(&place, &["-q", "--libs", libs, hooks.option()], &[library]);
            has(&whole(&place), &[("get", "bump", 2500), ("get_absent", "is_absent", 2500)], libs);
        }
    }
}

fn the_c_library_itself() {
    const USER: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline)) static int compare(const void *a, const void *b) { return *(int *)a - *(int *)b; }
__attribute__((noinline)) static void handler(int s) { (void)s; char c = 'h'; write(1, &c, 1); }
__attribute__((noinline)) static void leave(void) { puts("bye"); }
__attribute__((noinline)) static void *thread(void *x) {
    char *text = malloc(100);
    snprintf(text, 100, "%p %s", x, "in a thread");
    size_t n = strlen(text);
    free(text);
    return (void *)n;
}
int main(void) {
    atexit(leave);
    signal(SIGUSR1, handler);
    int v[200];
    for (int i = 0; i < 200; i++) v[i] = i * 37 % 200;
    qsort(v, 200, sizeof *v, compare);
    raise(SIGUSR1);
    pthread_t all[4];
    long sum = 0;
    for (int i = 0; i < 4; i++) pthread_create(&all[i], 0, thread, (void *)0x1000);
    for (int i = 0; i < 4; i++) { void *n; pthread_join(all[i], &n); sum += (long)n; }
    fflush(stdout);
    if (fork() == 0) { printf("child\n"); fflush(stdout); _exit(3); }
    int status;
    wait(&status);
    FILE *pipe = popen("echo popen", "r");
    char line[100];
    fputs(fgets(line, sizeof line, pipe), stdout);
    pclose(pipe);
    printf("%d %ld %d\n", v[7], sum, WEXITSTATUS(status));
    return 5;
}
"#;
    let place = Place::new();
    place.c("prog", USER, &["-g", "-pthread"]);
    for hooks in [Hooks::Both, Hooks::Entry] {
        same(&place, &["-q", "--libs", "none", hooks.option()], &[]);
        let alone = own(&place);
        same(&place, &["-q", "--libs", "all", hooks.option()], &[]);
        assert_eq!(own(&place), alone, "{hooks:?}: the program's own view");
        let calls = whole(&place);
        has(&calls, &[("main", "pthread_join", 4)], "libc");
        let compared: u64 = calls.iter().filter(|((_, to), _)| to == "compare").map(|(_, count)| count).sum();
        let own_compared: u64 = {
            let program = Program::read(&place.path("prog")).unwrap();
            let compare = program.named("compare").unwrap().address;
            alone.iter().filter(|((_, to), _)| *to == compare).map(|(_, count)| count).sum()
        };
        assert_eq!(compared, own_compared);
        let from_main = calls.get(&("main".to_owned(), "compare".to_owned()));
        assert_eq!(from_main, None, "the sorting function of the C library calls it: {calls:#?}");
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
#include <time.h>
__attribute__((noinline)) static void heavy(void) { for (int i = 0; i < 900000; i++) __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) static void light(void) { for (int i = 0; i < 100000; i++) __asm__ volatile("" ::: "memory"); }
void busy(void) { while (clock() < CLOCKS_PER_SEC / 2) { heavy(); light(); } }
"#;
    let place = Place::new();
    place.c("libbusy.so", BUSY, &["-g", "-fPIC", "-shared"]);
    let library = place.path("libbusy.so");
    place.c("prog", "void busy(void); int main(void) { busy(); return 0; }", &[library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    for (libs, sampler) in [("auto", "perf"), ("auto", "timer"), ("none", "perf"), ("others*", "timer")] {
        let outcome = same(&place, &["--libs", libs, "--sampler", sampler], &[]);
        if outcome.stderr_text().contains("no samples are taken") {
            skip::skipped("libraries::samples_in_libraries", "no perf events");
            return;
        }
        let program = Program::read(&place.path("gmon.syms")).unwrap();
        let profile = gprofdata::read(&place.path("gmon.whole")).unwrap();
        let of = |name: &str| {
            let function = program.named(name).unwrap();
            profile.samples_in(function.address, function.size)
        };
        let (heavy, light, all) = (of("heavy"), of("light"), profile.samples());
        assert!(heavy > 3 * light && heavy * 2 > all, "{heavy} and {light} of {all}");
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
    assert_eq!(files(), before + 3, "the child's profile and the two files of its whole view");
    has(&whole(&place), &[("main", "low", 1), ("low", "inner", 2)], "the parent");
    let is_whole = |name: &str| name.ends_with(".whole") && name != "gmon.whole";
    let names = std::fs::read_dir(place.folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let child = names.filter_map(|name| name.into_string().ok()).find(|name| is_whole(name));
    let child = child.unwrap();
    let files = [child.clone(), child.replace(".whole", ".syms")];
    for (from, to) in files.iter().zip(["gmon.whole", "gmon.syms"]) {
        std::fs::rename(place.path(from), place.path(to)).unwrap();
    }
    has(&whole(&place), &[("main", "low", 10), ("low", "inner", 20)], "the child");
    assert!(Path::new(&place.path("gmon.out")).exists());
}

/// The lines of a module in the output of `--list`, after its own line.
fn listed(list: &str, module: &str) -> Vec<String> {
    let mut lines = list.lines().skip_while(|line| !line.starts_with(module));
    assert!(lines.next().is_some(), "{module} in {list}");
    lines.take_while(|line| line.starts_with("0x")).map(str::to_owned).collect()
}

fn the_list_has_all_modules() {
    let place = built(&["-O2"]);
    let outcome = place.run(&["--list", "-X", "liblow.so!inner", "-X", "prog", "./prog"]);
    let (list, said) = (outcome.stdout_text(), outcome.stderr_text());
    assert_eq!(outcome.code(), 0, "{said}");
    assert!(said.contains("-X 'prog' matches no function") && !said.contains("liblow.so!inner"), "{said}");
    let own = |name: &str| place.path(name).canonicalize().unwrap().display().to_string();
    // In the order in which they are loaded, each with all the functions of its symbol table.
    let modules = ["./prog".to_owned(), own("libhigh.so"), own("liblow.so")];
    let places = modules.clone().map(|module| list.find(&format!("{module}: hooked")).unwrap_or(usize::MAX));
    assert!(places[0] == 0 && places[1..].iter().all(|&at| at != usize::MAX), "{list}");
    for (module, file) in modules.iter().zip(["prog", "libhigh.so", "liblow.so"]) {
        let lines = listed(&list, module);
        for function in Program::read(&place.path(file)).unwrap().functions() {
            let is_it = |line: &&String| u64::from_str_radix(&line[2..line.find(' ').unwrap()], 16) == Ok(function.address);
            let line = lines.iter().find(is_it).unwrap_or_else(|| panic!("{} in {list}", function.name()));
            let is_left_out = file == "liblow.so" && function.name() == "inner";
            assert_eq!(line.contains("refused: not-selected"), is_left_out, "{line}");
            assert!(line.split_whitespace().count() >= 4, "{line}");
        }
    }
    let libc = list.lines().find(|line| line.contains("/libc.so.6")).unwrap();
    assert!(libc.ends_with(": left out by --libs auto"), "{libc}");
    // The same with counters, for one library.
    let counted = place.run(&["--list", "--count", "blocks", "--libs", "liblow*", "./prog"]).stdout_text();
    let low = listed(&counted, &own("liblow.so"));
    assert!(low.iter().all(|line| line.contains(" block") || line.contains("not counted")), "{low:#?}");
    assert!(counted.contains(&format!("{}: left out by --libs liblow*", own("libhigh.so"))), "{counted}");
    // Without libraries, there are only functions.
    let alone = place.run(&["--list", "--libs", "none", "./prog"]).stdout_text();
    assert!(alone.lines().all(|line| line.starts_with("0x")), "{alone}");
    assert_eq!(alone.lines().map(str::to_owned).collect::<Vec<_>>(), {
        let with = place.run(&["--list", "./prog"]).stdout_text();
        listed(&with, "./prog")
    });
    // One that is gone, and one that is not a library.
    std::fs::remove_file(place.path("libhigh.so")).unwrap();
    let gone = place.run(&["--list", "./prog"]).stdout_text();
    assert!(gone.lines().any(|line| line.contains("libhigh.so") && line.ends_with(": not found")), "{gone}");
}

/// A program says itself which dynamic linker it wants, and `--list` runs nothing of what a program brings along.
fn only_the_systems_dynamic_linker_is_asked() {
    const MARKING: &str = r#"
#include <stdio.h>
int main(void) { fclose(fopen("ran", "w")); return 0; }
"#;
    let place = Place::new();
    place.c("fake", MARKING, &["-static"]);
    let option = format!("-Wl,--dynamic-linker={}", place.path("fake").display());
    place.c("prog", "int main(void) { return 0; }", &[&option]);
    let outcome = place.run(&["--list", "./prog"]);
    let said = outcome.stderr_text();
    assert!(said.contains("the libraries of ./prog are not listed") && said.contains("not the system's"), "{said}");
    assert!(outcome.stdout_text().contains("  main"), "{}", outcome.stdout_text());
    // Nor do libraries run, which have constructors, or auditors.
    place.c("libmark.so", "#include <stdio.h>\n__attribute__((constructor)) void made(void) { fclose(fopen(\"ran\", \"w\")); } \
        unsigned la_version(unsigned v) { made(); return v; }", &["-fPIC", "-shared"]);
    let library = place.path("libmark.so");
    place.c("marked", "void made(void); int main(void) { made(); return 0; }", &[library.to_str().unwrap()]);
    let mut command = place.command(&["--list", "./marked"]);
    command.env("LD_AUDIT", &library);
    // The variable is gprofinject's own as well.
    command.env_remove("LD_AUDIT");
    let list = finish(command).stdout_text();
    assert!(list.contains("libmark.so: hooked"), "{list}");
    assert!(!place.path("ran").exists());
}

/// The last line and `--stats` say how many libraries are not hooked and why, and a library that cannot be is named.
fn what_is_not_hooked_is_named() {
    let place = built(&["-O2"]);
    let stats = |options: &[&str]| {
        let outcome = same(&place, &[&["--stats", "stats"], options].concat(), &[]);
        let text = std::fs::read(place.path("stats")).unwrap();
        let stats: serde_json::Value = serde_json::from_slice(&text).unwrap();
        (outcome.stderr_text(), stats["libraries"].clone())
    };
    let of = |stats: &serde_json::Value, name: &str| {
        let all = stats.as_array().unwrap().iter();
        let is_it = |library: &&serde_json::Value| library["path"].as_str().unwrap().ends_with(name);
        { all }.find(is_it).cloned().unwrap_or_default()
    };
    let (said, libraries) = stats(&["--libs", "liblow*", "-v"]);
    assert!(said.contains("of 1 library (3 left out by --libs 'liblow*'), "), "{said}");
    assert!(said.contains("libhigh.so is left out by --libs liblow*"), "{said}");
    let low = of(&libraries, "/liblow.so");
    assert_eq!((low["status"].as_str(), of(&libraries, "/libhigh.so")["status"].as_str()), (Some("hooked"), Some("left-out")));
    // gcc's own functions in the library are hooked as well.
    let found = Program::read(&place.path("liblow.so")).unwrap().functions().count() as u64;
    assert_eq!(low["functions"]["found"].as_u64(), Some(found), "{low}");
    let (_, libraries) = stats(&["--count", "blocks", "-X", "liblow.so!inner"]);
    let low = of(&libraries, "/liblow.so");
    assert_eq!(low["functions"]["refused_by_reason"]["not-selected"], 1, "{low}");
    assert_eq!(low["blocks"]["uncounted_by_reason"]["not-hooked"], 1, "{low}");
    // A library whose file is replaced before the process asks for it is refused; here by one without any function.
    let data = place.c("libdata.so", "const char data[] = \"x\"; __asm__(\".text\\n.byte 6, 6, 6, 6\");", &["-nostdlib", "-fPIC", "-shared"]);
    let mut command = place.command(&["./prog"]);
    command.env("LD_PRELOAD", &data);
    let outcome = finish(command);
    let said = outcome.stderr_text();
    assert!(said.contains("libdata.so is not hooked: it has no functions"), "{said}");
    assert!(said.contains("of 2 libraries (2 left out by --libs auto, 1 refused), "), "{said}");
}
