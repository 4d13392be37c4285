//! The C library and the dynamic linker, hooked under `--libs all`, and code with conventions of their own.

use std::fs;
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::elf::Program;
use gprofinject_tests::place::{HELLO, Place, finish};
use gprofinject_tests::run::Outcome;
use gprofinject_tests::tool::Hooks;

use crate::libraries::{has, own, same, whole};
use crate::library_lists::listed;
use crate::plugins::{HOST, plugins_are_counted, with_plugins};

gprofinject_tests::trials! {
    together:
        the_dynamic_linker_itself,
        a_dynamic_linker_without_names,
        thread_local_variables_by_descriptors,
        the_c_library_itself,
        runnable_libraries;
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

/// The C library and the dynamic linker can be run as programs, and do what they do alone. So can any library that has an
/// interpreter, whatever it exports.
fn runnable_libraries() {
    const MODES: [&[&str]; 6] = [
        &[],
        &["--hooks", "entry"],
        &["--times"],
        &["--trace", "trace"],
        &["--libs", "all"],
        &["--count", "blocks"],
    ];
    /// It exports functions with the names of those that gprofinject looks for in a process.
    const LIBRARY: &str = r#"
#include <stdio.h>
#include <unistd.h>
__asm__(".section .interp, \"a\"\n.string \"/lib64/ld-linux-x86-64.so.2\"\n.text");
__attribute__((noinline)) int twice(int x) { __asm__ volatile(""); return 2 * x; }
int execveat(void) { return twice(1) + 1; }
int begin(void) {
    int x = 1;
    for (int i = 0; i < 20; i++) x = twice(x);
    printf("%d %d\n", x, execveat());
    fflush(stdout);
    _exit(7);
}
__asm__(".globl enter\nenter: and $-16, %rsp\ncall begin\n");
"#;
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    let library = place.c("libruns.so", LIBRARY, &["-shared", "-fPIC", "-Wl,-e,enter", "-Wl,-soname,libruns.so"]);
    let found = finish({
        let mut compiler = Command::new("gcc");
        compiler.arg("-print-file-name=libc.so.6");
        compiler
    });
    let libc = found.stdout_text().trim().to_owned();
    let linker = "/lib64/ld-linux-x86-64.so.2";
    let runs: [&[&str]; 5] = [
        &[&libc],
        &[library.to_str().unwrap()],
        &[linker, "--version"],
        &[linker, "--list", "./hello"],
        &[linker, "./hello"],
    ];
    for run in runs {
        let mut alone = Command::new(run[0]);
        alone.args(&run[1..]).current_dir(place.folder.path());
        let alone = finish(alone);
        for mode in MODES {
            let outcome = place.run(&[mode, run].concat());
            let said = outcome.stderr_text();
            assert_eq!(outcome.code(), alone.code(), "{mode:?} {run:?}: {said}");
            assert_eq!(without_addresses(&outcome), without_addresses(&alone), "{mode:?} {run:?}: {said}");
            assert!(run[0] == linker || !said.contains("cannot be hooked"), "{mode:?} {run:?}: {said}");
        }
    }
}

/// Returns what was printed without the addresses at which libraries are loaded, which differ each time.
fn without_addresses(outcome: &Outcome) -> String {
    let text = outcome.stdout_text();
    text.lines().map(|line| line.split(" (0x").next().unwrap_or_default().to_owned() + "\n").collect()
}

/// Where neither a symbol table nor a debug file names the dynamic linker's functions, none of them is hooked: gprofinject
/// calls one of them itself, and could not tell which. Everything else is hooked as usual.
fn a_dynamic_linker_without_names() {
    const NOTE: &[u8] = b"\x03\0\0\0GNU\0";
    let place = with_plugins();
    // A stripped copy of another build-id has no debug file.
    let copy = place.path("ld-linux-x86-64.so.2");
    let strip = "strip --strip-all -o ld-linux-x86-64.so.2 /lib64/ld-linux-x86-64.so.2";
    let done = Command::new("sh").args(["-c", strip]).current_dir(place.folder.path()).status().unwrap();
    assert!(done.success());
    let mut bytes = fs::read(&copy).unwrap();
    let note = bytes.windows(NOTE.len()).position(|window| window == NOTE).unwrap();
    bytes[note + NOTE.len()] ^= 0x5a;
    fs::write(&copy, bytes).unwrap();
    let interpreter = format!("-Wl,--dynamic-linker={}", copy.display());
    for binding in ["-Wl,-z,lazy", "-Wl,-z,now"] {
        place.c("prog", HOST, &["-g", "-rdynamic", "-pthread", "-ldl", binding, &interpreter]);
        for hooks in Hooks::ALL {
            let outcome = same(&place, &["-v", "--libs", "all", hooks.option()], &["4", "50"]);
            let said = outcome.stderr_text();
            assert!(said.contains("ld-linux-x86-64.so.2 is not hooked: none of its functions"), "{said}");
            plugins_are_counted(&place, 100);
            let calls = whole(&place);
            // pthread_create calls _dl_allocate_tls, which the dynamic linker exports.
            let of_linker = |name: &str| name.starts_with("ld-linux") || name == "_dl_allocate_tls";
            assert!(!calls.keys().any(|(_, to)| of_linker(to)), "{hooks:?}: {calls:#?}");
            // The C library is hooked.
            assert!(calls.keys().any(|(from, to)| from == "use" && to.contains("dlopen")), "{hooks:?}: {calls:#?}");
        }
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
            let listing = Command::new("objdump").arg("-d").arg(file).output().unwrap();
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

/// A program that does much in the C library: with callbacks, in a signal handler, in threads, in a child, and at exit.
pub(crate) const IN_THE_C_LIBRARY: &str = r#"
#include <math.h>
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
    snprintf(text, 100, "%p %.3f", x, sin(2.5));
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
    if (fork() == 0) { printf("child %d\n", atoi("17")); fflush(stdout); _exit(3); }
    int status;
    wait(&status);
    FILE *pipe = popen("echo popen", "r");
    char line[100];
    fputs(fgets(line, sizeof line, pipe), stdout);
    pclose(pipe);
    printf("%d %ld %d %.6f\n", v[7], sum, WEXITSTATUS(status), pow(2.5, 3.25));
    return 5;
}
"#;

fn the_c_library_itself() {
    let place = Place::new();
    place.c("prog", IN_THE_C_LIBRARY, &["-g", "-pthread", "-lm"]);
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
