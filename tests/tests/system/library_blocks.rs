//! Basic-block counts of libraries: the count of every instruction of every counted function is callgrind's, and the count
//! of every line is gcov's, also in threads, in children, and after a library was unloaded or has crashed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::elf::Program;
use gprofinject_tests::place::{Place, finish};
use gprofinject_tests::run::Outcome;
use gprofinject_tests::{callgrind, tool, view};

use crate::c_library::IN_THE_C_LIBRARY;
use crate::blocks::spread;

gprofinject_tests::trials! {
    together:
        lines_are_those_of_gcov,
        ways_through_functions,
        exceptions,
        threads_and_signals,
        jumps_into_functions,
        zlib,
        sqlite,
        the_c_library,
        plugins_that_come_and_go,
        another_library_at_the_same_address,
        children,
        calls_from_other_modules,
        a_crash_in_a_library,
        a_dump_while_it_runs;
}

/// Runs the program alone and under gprofinject with these options, and checks that it prints and returns the same.
fn same(place: &Place, options: &[&str], args: &[&str]) -> Outcome {
    let mut alone = Command::new(place.path("prog"));
    alone.args(args).current_dir(place.folder.path());
    let alone = finish(alone);
    let outcome = place.run(&[options, &["./prog"], args].concat());
    let said = outcome.stderr_text();
    assert_eq!(outcome.code(), alone.code(), "{options:?}: {said}");
    assert_eq!(outcome.stdout_text(), alone.stdout_text(), "{options:?}: {said}");
    outcome
}

/// Returns how often each basic block of a library was executed, by the run's recording; `None` if none was counted.
fn blocks_of(place: &Place, library: &str) -> Option<Vec<(u64, u64)>> {
    let recording = view::read(&place.path("gmon.pb.gz")).unwrap();
    let is_it = |module: u32| recording.modules[module as usize].path.rsplit('/').next() == Some(library);
    let blocks = recording.blocks.iter().filter(|block| is_it(block.module));
    let blocks: Vec<_> = blocks.map(|block| (block.address, block.executions)).collect();
    (!blocks.is_empty()).then_some(blocks)
}

/// Checks the count of each instruction of these libraries, which `prog` uses, against callgrind's. `least` is the number of
/// instructions that have to be counted.
fn agrees(place: &Place, libs: &str, libraries: &[&Path], args: &[&str], least: usize) {
    if !callgrind::available() || !skip::have("objdump") {
        return skip::skipped("library_blocks::agrees", "no valgrind, or no objdump");
    }
    let all: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
    let (expected, _) = callgrind::run_instructions(&place.path("prog"), &all, None).unwrap();
    for hooks in ["both", "entry", "none"] {
        same(place, &["-q", "--hooks", hooks, "--count", "blocks", "--libs", libs], args);
        for library in libraries {
            let library = library.canonicalize().unwrap();
            let name = library.file_name().unwrap().to_str().unwrap();
            let object = expected.object(&library).unwrap();
            let blocks = blocks_of(place, name).unwrap();
            let counts = spread(&library, &blocks);
            let counted = counts.values().filter(|(count, _)| *count > 0).count();
            assert!(counted >= least, "{name}, {hooks}: {counted} instructions");
            let wrong: Vec<String> = counts
                .iter()
                .filter(|(_, (_, repeats))| !repeats)
                .filter_map(|(&address, &(ours, _))| {
                    let theirs = expected.instructions.get(&(object, address)).copied().unwrap_or(0);
                    (ours != theirs).then(|| format!("{address:#x}: {ours}, callgrind {theirs}"))
                })
                .collect();
            let (number, some) = (wrong.len(), &wrong[..wrong.len().min(20)]);
            assert!(wrong.is_empty(), "{name}, {hooks}: {number} of {}: {some:#?}", counts.len());
        }
    }
}

/// Compiles a program of `tests/blocks` as a library whose `main` is called by a program that does nothing else.
fn as_library(source: &str, flags: &[&str]) {
    let compiler = if source.ends_with(".cc") { "g++" } else { "gcc" };
    for level in ["-O0", "-O2", "-Os"] {
        let place = Place::new();
        let text = std::fs::read_to_string(tool::folder().join("blocks").join(source)).unwrap();
        let all = [flags, &["-g", level, "-fPIC", "-shared", "-Dmain=library_main"]].concat();
        let library = place.compile(compiler, "libparts.so", &text, &all).unwrap();
        let arguments = if compiler == "gcc" { "argc, argv" } else { "" };
        let main = format!(
            "int library_main(); int main(int argc, char **argv) {{ return library_main({arguments}); }}"
        );
        let linked = [library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN", "-Wl,-z,now"];
        place.compile(compiler, "prog", &main, &[flags, &["-xnone"], &linked].concat()).unwrap();
        agrees(&place, "libparts.so", &[&library], &[], 100);
    }
}

fn ways_through_functions() {
    as_library("flow.c", &[]);
}

fn exceptions() {
    as_library("exceptions.cc", &[]);
}

fn threads_and_signals() {
    as_library("threads.c", &["-pthread"]);
}

/// A function may jump into the middle of another one. If it is not hooked, a thread may come there that has no counters for
/// the other one yet, which is then not counted.
fn jumps_into_functions() {
    const JUMPING: &str = r#"
__asm__(".text\n"
    ".globl counts, jumps\n.type counts, @function\n.type jumps, @function\n"
    "counts: push %rbx\n mov %edi, %ebx\n xor %eax, %eax\n test %ebx, %ebx\n jle 2f\n"
    "middle: add %ebx, %eax\n dec %ebx\n jnz middle\n"
    "2: pop %rbx\n ret\n.size counts, .-counts\n"
    ".p2align 4\njumps: push %rbx\n mov $3, %ebx\n mov $100, %eax\n nop\n jmp middle\n.size jumps, .-jumps\n"
    ".section .note.GNU-stack,\"\"\n.text\n");
"#;
    const MAIN: &str = r#"
#include <pthread.h>
#include <stdio.h>
int counts(int), jumps(void);
static void *thread(void *x) { long s = 0; for (int i = 0; i < 50; i++) s += jumps(); return (void *)s; }
int main(void) {
    pthread_t one;
    void *s;
    pthread_create(&one, 0, thread, 0);
    pthread_join(one, &s);
    printf("%ld %d\n", (long)s, counts(4));
    return 0;
}
"#;
    let place = Place::new();
    place.c("libjumps.so", JUMPING, &["-fPIC", "-shared"]);
    let library = place.path("libjumps.so");
    place.c("prog", MAIN, &[library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN", "-pthread"]);
    let middle = |options: &[&str]| {
        let options = [&["-q", "--count", "blocks", "--libs", "libjumps*"], options].concat();
        same(&place, &options, &[]);
        let blocks = blocks_of(&place, "libjumps.so")?;
        let functions = Program::read(&library).unwrap();
        let counts = functions.named("counts").unwrap();
        let own = counts.address..counts.address + counts.size;
        blocks.iter().filter(|(address, _)| own.contains(address)).map(|(_, count)| *count).max()
    };
    assert_eq!(middle(&[]), Some(50 * 3 + 4));
    assert_eq!(middle(&["-X", "jumps"]), None);
}

/// Compiles a program against a shared library of the system. Returns `None`, and says so, if the system has no such library.
fn with_system_library(test: &str, library: &str, source: &str) -> Option<(Place, PathBuf)> {
    let flag = format!("-l:{library}");
    let place = Place::new();
    if let Err(error) = place.compile("gcc", "prog", source, &[&flag, "-Wl,-z,now"]) {
        skip::skipped(test, &format!("no {library}: {error:#}"));
        return None;
    }
    let shown = finish({
        let mut ldd = Command::new("ldd");
        ldd.arg(place.path("prog"));
        ldd
    });
    let text = shown.stdout_text();
    let line = text.lines().find(|line| line.contains(library)).unwrap();
    let path = line.split_whitespace().find(|word| word.starts_with('/')).unwrap();
    Some((place, path.into()))
}

fn zlib() {
    const USER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int compress2(unsigned char *, unsigned long *, const unsigned char *, unsigned long, int);
int uncompress(unsigned char *, unsigned long *, const unsigned char *, unsigned long);
unsigned long crc32(unsigned long, const unsigned char *, unsigned), adler32(unsigned long, const unsigned char *, unsigned);
enum { N = 20000 };
static unsigned char data[N], packed[2 * N], back[N];
int main(void) {
    unsigned x = 1;
    for (int i = 0; i < N; i++) {
        x = x * 1103515245 + 12345;
        data[i] = x >> 28 ? "the quick brown fox "[i % 20] : x >> 16;
    }
    for (int level = 0; level <= 9; level++) {
        unsigned long len = sizeof packed, out = sizeof back;
        int r = compress2(packed, &len, data, N, level);
        r |= uncompress(back, &out, packed, len);
        printf("%d %lu %d %lx %lx\n", r, len, memcmp(data, back, N), crc32(0, back, N), adler32(1, back, N));
    }
    return 0;
}
"#;
    let Some((place, library)) = with_system_library("library_blocks::zlib", "libz.so.1", USER) else { return };
    agrees(&place, "auto", &[&library], &[], 1000);
}

fn sqlite() {
    const USER: &str = r#"
#include <stdio.h>
int sqlite3_open(const char *, void **), sqlite3_close(void *);
int sqlite3_exec(void *, const char *, int (*)(void *, int, char **, char **), void *, char **);
static int row(void *p, int n, char **values, char **names) {
    for (int i = 0; i < n; i++) printf("%s ", values[i] ? values[i] : "-");
    puts("");
    return 0;
}
static const char *TEXT[] = {
    "create table t(a integer primary key, b text, c real)",
    "with recursive n(x) as (select 1 union all select x + 1 from n where x < 500)"
    " insert into t select x, printf('%05d-%s', x * 7919 % 1000, hex(x)), x / 3.0 from n",
    "create index i on t(b)",
    "select count(*), min(b), max(c), sum(a) from t where b like '%7%' group by a % 5 order by 2",
    "update t set c = c * 2 where a % 3 = 0",
    "delete from t where a between 100 and 200",
    "select x.a, y.b from t x join t y on x.a = y.a + 1 where x.b > y.b order by x.b desc limit 20",
    "begin", "insert into t(b) values('x')", "rollback",
    "select substr(b, 2, 3), replace(upper(b), '0', 'o'), round(c, 2) from t where b in (select b from t limit 5)",
    "pragma integrity_check", "vacuum", "explain query plan select * from t where b = 'x' or a = 3",
};
int main(void) {
    void *db;
    if (sqlite3_open(":memory:", &db)) return 9;
    for (unsigned i = 0; i < sizeof TEXT / sizeof *TEXT; i++) printf("%d\n", sqlite3_exec(db, TEXT[i], row, 0, 0));
    return sqlite3_close(db);
}
"#;
    let name = "library_blocks::sqlite";
    let Some((place, library)) = with_system_library(name, "libsqlite3.so.0", USER) else { return };
    agrees(&place, "auto", &[&library], &[], 10_000);
}

/// Everything that is hooked is copied and counted, and the program does not notice.
fn the_c_library() {
    let place = Place::new();
    place.c("prog", IN_THE_C_LIBRARY, &["-g", "-pthread", "-lm", "-fno-builtin"]);
    for hooks in ["both", "entry", "none"] {
        same(&place, &["-q", "--hooks", hooks, "--count", "blocks", "--libs", "all"], &[]);
    }
    let blocks = blocks_of(&place, "libc.so.6").expect("counts of the C library");
    let executed = blocks.iter().filter(|block| block.1 > 0).count();
    assert!(executed > 1000, "{executed} blocks");
}

/// The counts of the lines of a file of a library, by `gmon lines`.
fn lines(place: &Place, library: &str, of: &[&str], file: &str) -> BTreeMap<u64, u64> {
    let mut gmon = Command::new(tool::gmon().unwrap());
    gmon.args(["lines", "--json", "--file", file, library]).args(of).current_dir(place.folder.path());
    let outcome = finish(gmon);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    let report: serde_json::Value = serde_json::from_slice(&outcome.stdout).unwrap();
    let lines = report["modules"][0]["files"][0]["lines"].as_array().unwrap();
    lines.iter().map(|line| (line["line"].as_u64().unwrap(), line["count"].as_u64().unwrap())).collect()
}

/// A library whose lines gcov counts as well. Each line has code of one kind.
const COUNTED: &str = r"
static int odd(int x) {
    if (x % 2)
        return x * 3;
    return x / 2;
}
int parts(int n, int (*f)(int)) {
    int s = 0;
    int i = 0;
    while (i < n) {
        switch (i % 7) {
        case 0:
            s += 1;
            break;
        case 1:
            s += odd(i);
            break;
        case 2:
            s ^= 5;
            break;
        case 3:
            s -= f(i);
            break;
        case 4:
            s *= 3;
            break;
        default:
            if (s > 1000)
                s -= 900;
            s += 2;
        }
        i++;
    }
    return s;
}
int never(int x) {
    return odd(x);
}
";

fn lines_are_those_of_gcov() {
    const USER: &str = r#"
#include <stdio.h>
int parts(int, int (*)(int));
static int f(int x) { return x + 1; }
int main(void) { int s = 0; for (int i = 0; i < 50; i++) s += parts(i, f); printf("%d\n", s); return 0; }
"#;
    if !skip::have_for("library_blocks::lines_are_those_of_gcov", &["gcov"]) {
        return;
    }
    let with_library = |flags: &[&str]| {
        let place = Place::new();
        place.c("libparts.so", COUNTED, &[flags, &["-O0", "-g", "-fPIC", "-shared"]].concat());
        let library = place.path("libparts.so");
        place.c("prog", USER, &[library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
        place
    };
    let theirs = with_library(&["--coverage"]);
    let mut alone = Command::new(theirs.path("prog"));
    alone.current_dir(theirs.folder.path());
    finish(alone);
    let mut gcov = Command::new("gcov");
    let notes = std::fs::read_dir(theirs.folder.path()).unwrap().map(|entry| entry.unwrap().path());
    gcov.args(["--json-format", "-t"]).args(notes.filter(|path| path.extension() == Some("gcno".as_ref())));
    gcov.current_dir(theirs.folder.path());
    let unit: serde_json::Value = serde_json::from_slice(&finish(gcov).stdout).unwrap();
    let counted = unit["files"][0]["lines"].as_array().unwrap().iter();
    let theirs_by_line: BTreeMap<u64, u64> = counted
        .map(|line| (line["line_number"].as_u64().unwrap(), line["count"].as_u64().unwrap()))
        .collect();
    let ours = with_library(&[]);
    for hooks in ["both", "entry", "none"] {
        // The program itself has no lines.
        let options = ["-q", "--hooks", hooks, "--count", "lines", "--libs", "libparts*"];
        same(&ours, &options, &[]);
        let counts = lines(&ours, "libparts.so", &["gmon.pb.gz"], "libparts.so.c");
        let both: Vec<_> = theirs_by_line.iter().filter(|(line, _)| counts.contains_key(line)).collect();
        assert!(both.len() > 20, "{counts:?}, gcov {theirs_by_line:?}");
        for (line, count) in both {
            assert_eq!(counts[line], *count, "{hooks}, line {line}: {counts:?}, gcov {theirs_by_line:?}");
        }
    }
}

/// Plugins with the same layout, of which each says what it has done.
const PLUGIN: &str = r"
extern void count(int);
int enter(int x) {
    int s = WHICH;
    while (x-- > 0)
        s += x;
    if (WHICH)
        count(1);
    else
        count(0);
    return s;
}
";
const HOST: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
void count(int which) {}
static int use(const char *name, int x) {
    void *library = dlopen(name, RTLD_NOW);
    if (!library) { puts(dlerror()); exit(9); }
    int (*enter)(int) = dlsym(library, "enter");
    int result = enter(x);
    dlclose(library);
    return result;
}
static int times;
static void *thread(void *name) {
    long sum = 0;
    for (int i = 0; i < times; i++) sum += use(name, 3);
    return (void *)sum;
}
int main(int argc, char **argv) {
    int threads = atoi(argv[1]);
    times = atoi(argv[2]);
    long sum = 0;
    if (threads == 0) {
        for (int i = 0; i < times; i++) sum += use("./zero.so", 3) + use("./one.so", 5);
    } else {
        pthread_t all[16];
        for (int i = 0; i < threads; i++) pthread_create(&all[i], 0, thread, i % 2 ? "./one.so" : "./zero.so");
        for (int i = 0; i < threads; i++) { void *part; pthread_join(all[i], &part); sum += (long)part; }
    }
    printf("%ld\n", sum);
    return 0;
}
"#;

fn with_plugins() -> Place {
    let place = Place::new();
    place.c("zero.so", PLUGIN, &["-O0", "-g", "-fPIC", "-shared", "-DWHICH=0"]);
    place.c("one.so", PLUGIN, &["-O0", "-g", "-fPIC", "-shared", "-DWHICH=1"]);
    place.c("prog", HOST, &["-g", "-rdynamic", "-pthread", "-ldl"]);
    place
}

fn plugins_that_come_and_go() {
    let place = with_plugins();
    same(&place, &["-q", "--count", "lines", "--libs", "*.so"], &["4", "100"]);
    for (name, calls) in [("zero", 200), ("one", 200)] {
        let counts = lines(&place, &format!("{name}.so"), &["gmon.pb.gz"], &format!("{name}.so.c"));
        assert_eq!((counts[&4], counts[&6], counts[&11]), (calls, 3 * calls, calls), "{name}: {counts:?}");
    }
}

/// Each time one of them is loaded, it comes to the place of the other one.
fn another_library_at_the_same_address() {
    let place = with_plugins();
    same(&place, &["-q", "--count", "lines", "--libs", "*.so"], &["0", "30"]);
    for (name, rounds) in [("zero", 3), ("one", 5)] {
        let counts = lines(&place, &format!("{name}.so"), &["gmon.pb.gz"], &format!("{name}.so.c"));
        assert_eq!((counts[&4], counts[&6], counts[&11]), (30, 30 * rounds, 30), "{name}: {counts:?}");
    }
}

/// A child of fork returns to functions of the library that its parent has entered, and counts from there on.
fn children() {
    const FORKING: &str = r"
#include <sys/wait.h>
#include <unistd.h>
static int tick(int n) {
    int s = 0;
    while (n-- > 0)
        s += n;
    return s;
}
int forks(int n) {
    int s = tick(n);
    if (fork() == 0) {
        for (int i = 0; i < 7; i++)
            s ^= i;
        s += tick(3);
        _exit(s & 1);
    }
    wait(0);
    return s + tick(2);
}
";
    let place = Place::new();
    place.c("libforks.so", FORKING, &["-O0", "-g", "-fPIC", "-shared"]);
    let library = place.path("libforks.so");
    let main = "int forks(int); int main(void) { return forks(10) & 63; }";
    place.c("prog", main, &[library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    let count = |of: &[&str]| {
        let counts = lines(&place, "libforks.so", of, "libforks.so.c");
        // The calls of fork, the loop of the child, the body of the other loop, and what follows in the parent.
        [counts[&12], counts[&14], counts[&7], counts[&18]]
    };
    same(&place, &["-q", "--count", "lines", "--libs", "libforks*"], &[]);
    // What follows the call of fork runs twice.
    assert_eq!(count(&["gmon.pb.gz"]), [2, 7, 15, 1], "the sum");
    same(&place, &["-q", "--per-process", "--count", "lines", "--libs", "libforks*"], &[]);
    let recording = view::read(&place.path("gmon.pb.gz")).unwrap();
    let pids: Vec<String> = recording.programs.iter().map(|program| program.pid.to_string()).collect();
    assert_eq!(count(&["gmon.pb.gz", "--program", &pids[0]]), [1, 0, 12, 1], "the parent");
    let [_, own_loop, ticks, after] = count(&["gmon.pb.gz", "--program", &pids[1]]);
    assert_eq!((own_loop, ticks, after), (7, 3, 0), "the child");
}

/// In the basic block that a null pointer ends, only what has run is counted.
fn a_crash_in_a_library() {
    const CRASHING: &str = r"
volatile int a, b;
__attribute__((noipa)) void set(int *p, int n) {
    a = n;
    if (n > 5)
        a = 5;
    *p = n;
    b = n;
}
";
    const MAIN: &str = r"
void set(int *, int);
int main(void) { for (int n = 0; n < 100; n++) { int x; set(n < 7 ? &x : 0, n); } return 0; }
";
    let place = Place::new();
    place.c("libcrash.so", CRASHING, &["-O0", "-g", "-fPIC", "-shared"]);
    let library = place.path("libcrash.so");
    place.c("prog", MAIN, &[library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    let outcome = same(&place, &["--count", "lines", "--libs", "libcrash*"], &[]);
    assert_eq!(outcome.code(), 128 + 11, "{}", outcome.stderr_text());
    let counts = lines(&place, "libcrash.so", &["gmon.pb.gz"], "libcrash.so.c");
    assert_eq!((counts[&4], counts[&6], counts[&7]), (8, 2, 8), "{counts:?}");
    if outcome.stderr_text().contains("no samples are taken") {
        return skip::skipped("library_blocks::a_crash_in_a_library", "no perf events");
    }
    assert_eq!(counts[&8], 7, "what comes after the crash: {counts:?}");
}

fn a_dump_while_it_runs() {
    use std::io::{BufRead, BufReader, Write};
    const MAIN: &str = r#"
#include <stdio.h>
#include <unistd.h>
int parts(int, int (*)(int));
static int f(int x) { return x + 1; }
int main(void) {
    int c, s = 0;
    do {
        for (int i = 0; i < 10; i++) s += parts(i, f);
        printf("%d\n", getpid());
        fflush(stdout);
    } while ((c = getchar()) == '\n');
    return 0;
}
"#;
    let place = Place::new();
    place.c("libparts.so", COUNTED, &["-O0", "-g", "-fPIC", "-shared"]);
    let library = place.path("libparts.so");
    place.c("prog", MAIN, &[library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    let mut command = place.command(&["-q", "--count", "lines", "--libs", "libparts*", "./prog"]);
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut heard = || {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    let pid = heard();
    let entered = |file: &str| lines(&place, "libparts.so", &[file], "libparts.so.c")[&8];
    let ask = |args: &[&str]| {
        let outcome = place.run(&[args, &["--pid", &pid]].concat());
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    };
    ask(&["--dump", "-o", "first.out"]);
    assert_eq!(entered("first.pb.gz"), 10);
    ask(&["--reset"]);
    input.write_all(b"\n").unwrap();
    heard();
    input.write_all(b"\n").unwrap();
    heard();
    ask(&["--dump", "-o", "second.out"]);
    assert_eq!(entered("second.pb.gz"), 20);
    drop(input);
    assert!(child.wait().unwrap().success());
    assert_eq!(entered("gmon.pb.gz"), 20);
}

/// A function's calls are those from all modules, in the table of its own module too.
fn calls_from_other_modules() {
    const LIBRARY: &str = "__attribute__((noinline)) static int inner(int x) { __asm__ volatile(\"\"); return x + 1; }\n\
        int outer(int (*back)(int), int x) { return inner(inner(x)) + back(x); }\n";
    const MAIN: &str = "int outer(int (*)(int), int);\n\
        __attribute__((noinline)) int back(int x) { __asm__ volatile(\"\"); return x; }\n\
        int main(void) { int t = 0; for (int i = 0; i < 100; i++) t += outer(back, i); return t == 3; }\n";
    let place = Place::new();
    place.c("libouter.so", LIBRARY, &["-g", "-O1", "-fPIC", "-shared"]);
    let library = place.path("libouter.so");
    place.c("prog", MAIN, &["-g", "-O1", library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    same(&place, &["-q", "--count", "lines", "--libs", "libouter*"], &[]);
    for (module, function, calls) in [("libouter.so", "outer", 100), ("libouter.so", "inner", 200), ("prog", "back", 100)] {
        let mut gmon = Command::new(tool::gmon().unwrap());
        gmon.args(["lines", "--by", "function", "--json", "-m", module]).current_dir(place.folder.path());
        let report: serde_json::Value = serde_json::from_slice(&finish(gmon).stdout).unwrap();
        let rows = report["modules"][0]["functions"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == function).unwrap_or_else(|| panic!("{function}: {report}"));
        assert_eq!(row["calls"], calls, "{function}: {row}");
    }
}
