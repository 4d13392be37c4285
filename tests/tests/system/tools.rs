//! gprofinject together with other tools that get into a program: another gprofinject, valgrind, strace, auditors of the dynamic
//! linker, sanitizers that are preloaded. A program that gprofinject cannot follow there runs as alone and is named.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::place::{Place, finish};
use gprofinject_tests::{tool, view};

gprofinject_tests::trials! {
    together:
        gprofinject_in_gprofinject,
        valgrind,
        strace,
        exceptions_under_an_auditor,
        a_preloaded_sanitizer,
        a_preloaded_execve;
}

/// Sorts, calls back, and has a status of its own.
const PROGRAM: &str = "#include <stdio.h>\n#include <stdlib.h>\n\
    __attribute__((noinline)) int leaf(int x) { __asm__ volatile(\"\"); return x + 1; }\n\
    __attribute__((noinline)) int compare(const void *a, const void *b) { return leaf(*(int *)a) - leaf(*(int *)b); }\n\
    int main(void) { int v[100], x = 0; for (int i = 0; i < 100; i++) v[i] = i * 37 % 100; qsort(v, 100, 4, compare);\n\
    for (int i = 0; i < 1000; i++) x = leaf(x); printf(\"%d %d\\n\", x, v[99]); return 3; }\n";
const OUTPUT: &str = "1000 99\n";
const MODES: [&str; 3] = ["--hooks=both", "--hooks=entry", "--times"];

/// Returns the command gprofinject with a profile in the folder.
fn gprofinject(place: &Place, options: &[&str]) -> Command {
    let mut command = place.command(options);
    command.arg("-o").arg(place.path("gmon.out"));
    command
}

/// Runs a command and checks the program's output and status. Returns what was said.
fn is_as_alone(mut command: Command, words: &[&OsStr]) -> String {
    command.args(words);
    let what = format!("{command:?}");
    let outcome = finish(command);
    let said = outcome.stderr_text();
    assert_eq!((outcome.code(), outcome.stdout_text()), (3, OUTPUT.to_owned()), "{what}: {said}");
    said
}

/// The inner one profiles the program, and the outer one says so.
fn gprofinject_in_gprofinject() {
    let place = Place::new();
    let inner = place.path("inner.out");
    let (program, fixed) = (place.c("p", PROGRAM, &[]), place.c("fixed", PROGRAM, &["-static"]));
    for (program, mode) in [(&program, "--hooks=both"), (&program, "--times"), (&fixed, "--hooks=both")] {
        let _ = fs::remove_file(&inner);
        let outer = gprofinject(&place, &["--hooks=entry", "--libs=none"]);
        let words =
            [tool::gprofinject().unwrap().as_os_str(), "-q".as_ref(), mode.as_ref(), "-o".as_ref(), inner.as_ref(), program.as_ref()];
        let said = is_as_alone(outer, &words);
        assert!(said.contains("was not followed"), "{mode} {}: {said}", program.display());
        assert!(inner.is_file(), "{mode} {}: {said}", program.display());
    }
}

fn valgrind() {
    if !Path::new("/usr/bin/valgrind").is_file() {
        return skip::skipped("valgrind", "no valgrind");
    }
    let place = Place::new();
    let program = place.c("p", PROGRAM, &[]);
    for mode in MODES {
        let words: [&OsStr; 4] = ["valgrind".as_ref(), "-q".as_ref(), "--tool=none".as_ref(), program.as_ref()];
        let said = is_as_alone(gprofinject(&place, &[mode, "--libs=none"]), &words);
        assert!(said.contains("was not followed: it leaves the usual addresses"), "{mode}: {said}");
    }
    // gprofinject as valgrind's program.
    let mut outer = Command::new("valgrind");
    outer.args(["-q", "--tool=none"]).arg(tool::gprofinject().unwrap()).current_dir(place.folder.path());
    is_as_alone(outer, &["-q".as_ref(), "--no-cache".as_ref(), program.as_ref()]);
}

fn strace() {
    if !Path::new("/usr/bin/strace").is_file() {
        return skip::skipped("strace", "no strace");
    }
    let place = Place::new();
    for program in [place.c("p", PROGRAM, &[]), place.c("fixed", PROGRAM, &["-static"])] {
        let words: [&OsStr; 5] = ["strace".as_ref(), "-f".as_ref(), "-o".as_ref(), "/dev/null".as_ref(), program.as_ref()];
        is_as_alone(gprofinject(&place, &["-q", "--libs=none"]), &words);
        let mut outer = Command::new("strace");
        outer.args(["-f", "-o", "/dev/null"]).arg(tool::gprofinject().unwrap()).current_dir(place.folder.path());
        is_as_alone(outer, &["-q".as_ref(), "--no-cache".as_ref(), program.as_ref()]);
    }
}

/// An auditor that watches all calls through the PLT, from the program and from its libraries, with this much of the stack copied
/// for each call.
const AUDITOR: &str = "#define _GNU_SOURCE\n#include <link.h>\n\
    unsigned la_version(unsigned v) { return LAV_CURRENT; }\n\
    unsigned la_objopen(struct link_map *m, Lmid_t l, unsigned long *c) { return LA_FLG_BINDTO | LA_FLG_BINDFROM; }\n\
    unsigned long la_symbind64(Elf64_Sym *s, unsigned n, unsigned long *a, unsigned long *b, unsigned *f, const char *m) { return s->st_value; }\n\
    Elf64_Addr la_x86_64_gnu_pltenter(Elf64_Sym *s, unsigned n, unsigned long *a, unsigned long *b, La_x86_64_regs *r, unsigned *f, const char *m, long *size) { *size = SIZE; return s->st_value; }\n\
    unsigned la_x86_64_gnu_pltexit(Elf64_Sym *s, unsigned n, unsigned long *a, unsigned long *b, const La_x86_64_regs *i, La_x86_64_retval *o, const char *m) { return 0; }\n";
const THROWER: &str = "#include <cstdio>\n#include <stdexcept>\n#include <unwind.h>\n\
    struct Guard { ~Guard() { std::puts(\"cleaned\"); } };\n\
    __attribute__((noinline)) int thrower(int n) { Guard g; if (n) { int r = thrower(n - 1); __asm__ volatile(\"\"); return r; } throw std::runtime_error(\"x\"); }\n\
    static _Unwind_Reason_Code trace(_Unwind_Context *c, void *last) { unsigned long cfa = _Unwind_GetCFA(c); if (cfa % 8) std::puts(\"odd\"); return _URC_NO_REASON; }\n\
    int main() { for (int i = 0; i < 3; i++) try { thrower(i); } catch (std::exception &e) { std::puts(e.what()); }\n\
    _Unwind_Backtrace(trace, 0); std::puts(\"end\"); return 3; }\n";

fn exceptions_under_an_auditor() {
    let place = Place::new();
    let program = place.compile("g++", "thrower", THROWER, &["-xc++", "-Wl,-z,lazy"]).unwrap();
    for size in ["-1", "0", "64"] {
        let auditor = place.c("audit.so", AUDITOR, &["-shared", "-fPIC", &format!("-DSIZE={size}")]);
        let audited = |mut command: Command| {
            command.env("LD_AUDIT", &auditor).env_remove("LD_BIND_NOW");
            finish(command)
        };
        let alone = audited(Command::new(&program));
        assert_eq!(alone.code(), 3, "{}", alone.stderr_text());
        for mode in MODES {
            let mut command = gprofinject(&place, &["-q", mode]);
            command.arg(&program);
            let ours = audited(command);
            let what = format!("{size} {mode}: {}", ours.stderr_text());
            assert_eq!((ours.code(), ours.stdout_text()), (3, alone.stdout_text()), "{what}");
        }
    }
}

/// AddressSanitizer wants to be the first library, and reports what it finds on the stack. The program is only sampled then.
fn a_preloaded_sanitizer() {
    let name = Command::new("gcc").arg("-print-file-name=libasan.so").output().unwrap().stdout;
    let library = Path::new(std::str::from_utf8(&name).unwrap().trim()).canonicalize();
    let Ok(library) = library else { return skip::skipped("a_preloaded_sanitizer", "no libasan.so") };
    let place = Place::new();
    let program = place.c("p", PROGRAM, &[]);
    let assignment = format!("LD_PRELOAD={}", library.display());
    for mode in MODES {
        let mut command = gprofinject(&place, &[mode]);
        command.env("LD_PRELOAD", &library);
        let said = is_as_alone(command, &[program.as_ref()]);
        assert!(said.contains("AddressSanitizer is preloaded"), "{mode}: {said}");
        assert!(!said.contains("leak"), "{mode}: {said}");
        let said = is_as_alone(gprofinject(&place, &[mode]), &["env".as_ref(), assignment.as_ref(), program.as_ref()]);
        assert!(said.contains("AddressSanitizer is preloaded"), "{mode}: {said}");
    }
}

/// A library that wraps execve, as fakechroot's does, is no obstacle to following.
fn a_preloaded_execve() {
    const WRAPPER: &str = "#define _GNU_SOURCE\n#include <dlfcn.h>\n\
        int execve(const char *p, char *const a[], char *const e[]) { return ((int (*)(const char *, char *const[], char *const[]))dlsym(RTLD_NEXT, \"execve\"))(p, a, e); }\n";
    const EXECUTES: &str = "#include <unistd.h>\nextern char **environ;\n\
        int main(int n, char **a) { execve(a[1], a + 1, environ); return 9; }\n";
    let place = Place::new();
    let library = place.c("wrapper.so", WRAPPER, &["-shared", "-fPIC"]);
    let (program, executes) = (place.c("p", PROGRAM, &[]), place.c("executes", EXECUTES, &[]));
    let mut command = gprofinject(&place, &[]);
    command.env("LD_PRELOAD", &library);
    let said = is_as_alone(command, &[executes.as_ref(), program.as_ref()]);
    let recording = view::read(&place.path("gmon.pb.gz")).unwrap();
    assert!(recording.programs.iter().any(|program| program.name == "p"), "{said}");
}
