//! The Frida engine: what gum patches and what it is kept from, what the program sees of it, and what is not
//! possible with it. The matrix runs the programs of `tests/programs` on it (`matrix.rs`), and `real.rs` real
//! ones.

use std::collections::BTreeMap;
use std::process::Command;

use gprofinject_tests::place::{LIMIT, Place};
use gprofinject_tests::tool::{self, Engine};
use gprofinject_skip as skip;
use gprofinject_tests::{elf::Program, gprofdata, run};

gprofinject_tests::trials! {
    together:
        what_gum_would_break_is_refused,
        gum_it_is_that_patches,
        children_and_executed_programs_have_gum_too,
        a_program_may_have_functions_of_libcs_names,
        running_processes_are_not_for_gum,
        without_frida_the_command_says_how_to_have_it;
}

/// Whether there is a command with Frida. If not, the test is reported as skipped.
fn have_frida(test: &str) -> bool {
    match tool::frida() {
        Ok(_) => true,
        Err(why) => {
            skip::skipped(test, &format!("{why:#}"));
            false
        }
    }
}

/// Compiles a program in the place, and returns its result without gprofinject.
fn alone(place: &Place, name: &str, source: &str) -> run::Outcome {
    run::run(Command::new(place.c(name, source, &[])), None, LIMIT).unwrap()
}

/// Runs the gprofinject that contains Frida's gum.
fn frida(place: &Place, engine: Engine, args: &[&str]) -> run::Outcome {
    let mut command = tool::uncached(engine.gprofinject().unwrap());
    command.arg(engine.option()).args(args).current_dir(place.folder.path());
    command.env_remove("GMON_OUT_PREFIX").env("LD_BIND_NOW", "1");
    run::run(command, None, LIMIT).unwrap()
}

/// Returns the calls of each function in the profile.
fn calls(place: &Place, program: &str) -> BTreeMap<String, u64> {
    let elf = Program::read(&place.path(program)).unwrap();
    let mut calls = BTreeMap::new();
    for ((_, callee), count) in gprofdata::read(&place.path("gmon.out")).unwrap().arcs {
        *calls.entry(elf.label(callee)).or_default() += count;
    }
    calls
}

/// A function for each reason of refusal, each of which is called ten times. Their results show that they ran
/// as written.
const STARTS: &str = r#"
#include <stdio.h>
asm(".text\n"
#define F(name) ".p2align 4\n .globl " name "\n .type " name ", @function\n" name ":\n"
#define E(name) ".size " name ", . - " name "\n"
    // Three instructions, seventeen bytes.
    F("plain") "lea 1(%rdi), %rax\n mov $0, %ecx\n movabs $1, %rdx\n add %rdx, %rax\n ret\n" E("plain")
    F("short_one") "lea 2(%rdi), %rax\n ret\n" E("short_one")
    F("away") "lea 1(%rdi), %rdi\n jmp target\n" E("away")
    F("target") "lea 2(%rdi), %rax\n mov $0, %ecx\n movabs $0, %rdx\n add %rdx, %rax\n ret\n" E("target")
    // push and a call that ends before the sixteenth byte; and one that ends behind it.
    F("calls") "push %rbx\n call target\n mov %rax, %rbx\n lea 4(%rbx), %rax\n pop %rbx\n ret\n" E("calls")
    F("calls_late") "push %rbx\n mov $0, %ecx\n mov $0, %ebx\n call target\n lea 5(%rax,%rbx), %rax\n"
        "pop %rbx\n ret\n" E("calls_late")
    // The loop's first instruction is the function's fourth byte.
    F("entered") "mov $3, %ecx\n 1: lea 1(%rdi), %rdi\n nopl 0x0(%rax)\n nopl 0x0(%rax)\n nopl 0x0(%rax)\n"
        "dec %ecx\n jnz 1b\n lea 3(%rdi), %rax\n ret\n" E("entered")
    F("looped") "lea 1(%rdi), %rdi\n nopl 0x0(%rax)\n nopl 0x0(%rax)\n nopl 0x0(%rax)\n nopl 0x0(%rax)\n"
        "test $7, %dil\n jnz looped\n mov %rdi, %rax\n ret\n" E("looped")
    // The same, but all of the loop is overwritten: it goes on in the body, and is no call.
    F("loops_within") "lea 1(%rdi), %rdi\n test $7, %dil\n jnz loops_within\n nopl 0x0(%rax)\n"
        "mov %rdi, %rax\n mov $0, %ecx\n ret\n" E("loops_within")
    F("jumps") "jmp 1f\n .fill 20, 1, 0x90\n 1: lea 9(%rdi), %rax\n ret\n" E("jumps")
);
long plain(long), short_one(long), away(long), target(long), calls(long), calls_late(long), entered(long),
    looped(long), loops_within(long), jumps(long);
int main(void) {
    long sum = 0;
    for (long i = 0; i < 10; i++)
        sum = sum * 3 + plain(i) + short_one(i) + away(i) + calls(i) + calls_late(i) + entered(i) + looped(i)
            + loops_within(i) + jumps(i);
    printf("%ld\n", sum);
    return 0;
}
"#;

fn what_gum_would_break_is_refused() {
    if !have_frida("what_gum_would_break_is_refused") {
        return;
    }
    let place = Place::new();
    let alone = alone(&place, "starts", STARTS);
    let list = |engine| frida(&place, engine, &["--list", "./starts"]).stdout_text();
    let verdict = |list: &str, name: &str| {
        let line = list.lines().find(|line| line.split_whitespace().nth(2) == Some(name)).unwrap();
        let words: Vec<&str> = line.split_whitespace().skip(3).collect();
        if words[0] == "refused:" { words[1].to_owned() } else { words[0].to_owned() }
    };
    let expected = [
        ("plain", "frida"),
        ("short_one", "frida-room"),
        ("away", "frida-room"),
        ("target", "frida"),
        ("calls", "frida-call"),
        ("calls_late", "frida"),
        ("entered", "frida-entered"),
        ("looped", "frida-loop"),
        ("loops_within", "frida"),
        ("jumps", "frida-jump"),
    ];
    let (alone_list, both_list) = (list(Engine::Frida), list(Engine::FridaOrBuiltin));
    for (name, verdict_expected) in expected {
        assert_eq!(verdict(&alone_list, name), verdict_expected, "{name}:\n{alone_list}");
        // gum would move the call; the built-in jump leaves it where its return address is known.
        let by_gum = verdict_expected == "frida" && name != "calls_late";
        assert_eq!(verdict(&both_list, name) == "frida", by_gum, "{name}:\n{both_list}");
    }
    for engine in [Engine::Frida, Engine::FridaOrBuiltin] {
        for hooks in ["--hooks=both", "--hooks=entry"] {
            let outcome = frida(&place, engine, &["-q", hooks, "./starts"]);
            assert_eq!(outcome.stdout_text(), alone.stdout_text(), "{engine:?} {hooks}");
            assert_eq!(outcome.stderr_text(), "", "{engine:?} {hooks}");
            let calls = calls(&place, "starts");
            for (name, verdict) in expected {
                let hooked = verdict == "frida" || engine == Engine::FridaOrBuiltin;
                let want = match name {
                    _ if !hooked => None,
                    "target" => Some(30),
                    _ => Some(10),
                };
                assert_eq!(calls.get(name).copied(), want, "{engine:?} {hooks} {name}: {calls:?}");
            }
        }
    }
}

/// Prints the first bytes of `work`, and what else of gprofinject a program can see: errno, descriptors,
/// variables, libraries for which it has not asked, and writable code.
const LOOKS: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
extern char **environ;
long seen[8];
__attribute__((noipa)) long work(long a, long b) {
    seen[0] = a; seen[1] = b; seen[2] = a + b; seen[3] = a - b; seen[4] = a * b;
    return seen[2] + seen[4];
}
int main(void) {
    int before = errno, count = 0;
    unsigned char bytes[16];
    memcpy(bytes, (void *)work, sizeof bytes);
    printf("errno %d, work %ld\n", before, work(3, 4));
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder)) count++;
    closedir(folder);
    printf("descriptors %d\n", count);
    for (char **e = environ; *e; e++)
        if (strstr(*e, "gprofinject") || strstr(*e, "GPROFINJECT") || strstr(*e, "LD_PRELOAD")) puts(*e);
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "libgcc_s") || strstr(line, "libstdc++") || strstr(line, "wxp") && strstr(line, "/looks"))
            fputs(line, stdout);
    for (unsigned i = 0; i < sizeof bytes; i++) fprintf(stderr, "%02x", bytes[i]);
    fprintf(stderr, "\n");
    return 0;
}
"#;

fn gum_it_is_that_patches() {
    if !have_frida("gum_it_is_that_patches") {
        return;
    }
    let place = Place::new();
    let alone = alone(&place, "looks", LOOKS);
    let by = |engine: Engine| frida(&place, engine, &["-q", "./looks"]);
    let (builtin, gum) = (by(Engine::Builtin), by(Engine::Frida));
    assert_eq!(builtin.stdout_text(), alone.stdout_text());
    assert_eq!(gum.stdout_text(), alone.stdout_text());
    // Both begin with a near jump. After it, the built-in engine leaves the old bytes; gum writes nops, of
    // which the first has nine bytes if there is room.
    let [was, ours, gums] = [&alone, &builtin, &gum].map(|outcome| outcome.stderr_text().trim().to_owned());
    assert_eq!((&ours[..2], &gums[..2]), ("e9", "e9"), "{was} {ours} {gums}");
    assert_eq!(ours[10..], was[10..], "{was} {ours}");
    assert_eq!(gums[10..28], *"660f1f840000000000", "{was} {gums}");
}

/// Forks, and executes itself in a child.
const FAMILY: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
long seen[8];
__attribute__((noipa)) void work(long a, long b) {
    seen[0] += a; seen[1] += b; seen[2] += a + b; seen[3] += a - b; seen[4] += a * b;
}
int main(int argc, char **argv) {
    int times = argc > 1 ? atoi(argv[1]) : 1000;
    for (int i = 0; i < times; i++) work(i, i);
    if (argc > 1) return 0;
    if (fork() == 0) {
        for (int i = 0; i < 20; i++) work(i, i);
        execl(argv[0], argv[0], "300", (char *)0);
        _exit(9);
    }
    int status = 0;
    wait(&status);
    return WEXITSTATUS(status);
}
"#;

fn children_and_executed_programs_have_gum_too() {
    if !have_frida("children_and_executed_programs_have_gum_too") {
        return;
    }
    let place = Place::new();
    place.c("family", FAMILY, &["-O2"]);
    let outcome = frida(&place, Engine::Frida, &["--stats", "stats.json", "-I", "work", "./family"]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    assert!(outcome.stderr_text().contains("none of its libraries"), "{}", outcome.stderr_text());
    let stats: serde_json::Value =
        serde_json::from_slice(&std::fs::read(place.path("stats.json")).unwrap()).unwrap();
    assert_eq!(stats["engine"], "frida");
    assert_eq!(stats["functions"]["hooked_by_tactic"]["frida"], 1, "{stats}");
    assert_eq!(stats["calls"], 1000, "{stats}");
    let mut others: Vec<u64> =
        stats["processes"].as_array().unwrap().iter().map(|p| p["calls"].as_u64().unwrap()).collect();
    others.sort_unstable();
    assert_eq!(others, [20, 300], "{stats}");
}

/// Functions of the program that have the names of functions which gum calls in libc. All except one report
/// that they were called, and return what libc's would never return. Its malloc counts.
const NAMES: &str = r#"
#include <stddef.h>
long write(int, const void *, size_t);
void _exit(int);
#define SAYS(name) void *name(void) { write(1, #name "\n", sizeof #name); return (void *)-9; }
SAYS(access) SAYS(clock_gettime) SAYS(dlsym) SAYS(__errno_location) SAYS(fclose) SAYS(fopen64) SAYS(free) SAYS(getenv)
SAYS(getpid) SAYS(mmap) SAYS(mmap64) SAYS(mprotect) SAYS(munmap) SAYS(open64) SAYS(pthread_key_create)
SAYS(pthread_mutex_lock) SAYS(pthread_self) SAYS(pthread_setspecific) SAYS(read) SAYS(readlink) SAYS(sigaction)
SAYS(strchr) SAYS(strcmp) SAYS(strlen) SAYS(syscall) SAYS(sysconf) SAYS(time)
static char heap[1 << 20];
static size_t used, blocks;
__attribute__((noipa)) void *malloc(size_t len) { blocks++; used += (len + 15) & -16; return heap + used - len; }
__attribute__((noipa)) void *calloc(size_t n, size_t len) { return malloc(n * len); }
__attribute__((noipa)) void *realloc(void *old, size_t len) { return malloc(len); }
int main(void) {
    for (int i = 0; i < 10; i++) *(char *volatile)malloc(100) = i;
    char said[] = "0 blocks\n";
    said[0] += blocks - 10;
    write(1, said, sizeof said - 1);
    _exit(0);
}
"#;

fn a_program_may_have_functions_of_libcs_names() {
    if !have_frida("a_program_may_have_functions_of_libcs_names") {
        return;
    }
    let place = Place::new();
    let program = place.c("names", NAMES, &["-fno-builtin"]);
    let alone = run::run(Command::new(program), None, LIMIT).unwrap();
    assert_eq!(alone.stdout_text(), "0 blocks\n");
    for engine in [Engine::Frida, Engine::FridaOrBuiltin] {
        let outcome = frida(&place, engine, &["-q", "./names"]);
        let seen = (outcome.code(), outcome.stdout_text(), outcome.stderr_text());
        assert_eq!(seen, (0, alone.stdout_text(), String::new()), "{engine:?}");
        let calls = calls(&place, "names");
        assert_eq!(calls.get("malloc"), Some(&10), "{engine:?}: {calls:?}");
    }
}

fn running_processes_are_not_for_gum() {
    if !have_frida("running_processes_are_not_for_gum") {
        return;
    }
    let place = Place::new();
    let mut sleeper = Command::new("sleep").arg("20").spawn().unwrap();
    let pid = sleeper.id().to_string();
    let outcome = frida(&place, Engine::FridaOrBuiltin, &["--pid", &pid, "--duration", "1"]);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!(outcome.code(), 125, "{}", outcome.stderr_text());
    let said = outcome.stderr_text();
    assert!(said.contains("--engine frida,builtin") && said.contains("omit --engine"), "{said}");
}

fn without_frida_the_command_says_how_to_have_it() {
    let place = Place::new();
    place.c("nothing", "int main(void) { return 0; }", &[]);
    for engine in [Engine::Frida, Engine::FridaOrBuiltin] {
        let outcome = place.run(&[engine.option(), "./nothing"]);
        assert_eq!(outcome.code(), 125);
        let said = outcome.stderr_text();
        assert!(said.contains("--features frida") && said.contains("docs/frida.md"), "{said}");
    }
}
