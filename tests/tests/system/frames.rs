//! What a program's own code sees when an unwinder calls it for each frame: stop functions, callbacks of backtraces, personality
//! routines. It must see the frames that it sees alone. The program prints all that the unwinder says, relative to a frame and
//! to the start of the function, and alone is the ground truth.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gprofinject_skip as skip;
use gprofinject_tests::place::Place;
use gprofinject_tests::{compile, run, tool};

gprofinject_tests::trials! {
    together:
        stop_functions_and_callbacks,
        personality_routines,
        walks_with_libunwind;
}

const LIMIT: Duration = Duration::from_secs(60);
/// The ways in which exits are hooked, and one in which they are not.
const MODES: [&[&str]; 4] = [&["--hooks=both"], &["--hooks=entry"], &["--times"], &["--libs=all"]];

/// Forced unwindings and backtraces, in C, with everything that can be asked about a frame.
const WALKS: &str = r#"
#include <unwind.h>
#include <execinfo.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#define OPAQUE __attribute__((noinline, noclone))
#define BARRIER() __asm__ volatile("" ::: "memory")
static jmp_buf back;
static char *base;
static int cleaned, number;
static struct _Unwind_Exception exceptions[64];
static void show(const char *what, struct _Unwind_Context *context) {
    int before = 0;
    unsigned long ip = _Unwind_GetIPInfo(context, &before), start = _Unwind_GetRegionStart(context);
    void *around = _Unwind_FindEnclosingFunction((void *)(ip - 1));
    printf("%s: cfa %ld ip %ld same %d before %d lsda %d around %ld\n", what, (long)(_Unwind_GetCFA(context) - (unsigned long)base),
        (long)(ip - start), ip == _Unwind_GetIP(context), before, _Unwind_GetLanguageSpecificData(context) != 0, (long)(start - (unsigned long)around));
}
static _Unwind_Reason_Code stop(int version, _Unwind_Action actions, _Unwind_Exception_Class class,
    struct _Unwind_Exception *e, struct _Unwind_Context *context, void *limit) {
    printf("stop %d %d %lx %d: ", version, actions & ~16, (long)class, (int)(e - exceptions));
    if (actions & _UA_END_OF_STACK) { puts("end"); longjmp(back, 2); }
    show("", context);
    if (_Unwind_GetCFA(context) > (unsigned long)limit) longjmp(back, 1);
    return _URC_NO_REASON;
}
static _Unwind_Reason_Code end_stop(int version, _Unwind_Action actions, _Unwind_Exception_Class class,
    struct _Unwind_Exception *e, struct _Unwind_Context *context, void *steps) {
    ++*(int *)steps;
    if (actions & _UA_END_OF_STACK) longjmp(back, 3);
    return _URC_NO_REASON;
}
static void clean(int *n) { cleaned += *n; }
OPAQUE static int down(int n, void *limit) {
    int one __attribute__((cleanup(clean))) = 1;
    if (n) { int r = down(n - 1, limit); BARRIER(); return r; }
    struct _Unwind_Exception *e = &exceptions[number++];
    return limit ? _Unwind_ForcedUnwind(e, stop, limit) : _Unwind_ForcedUnwind(e, end_stop, &cleaned);
}
static _Unwind_Reason_Code trace(struct _Unwind_Context *context, void *count) {
    if (++*(int *)count <= 6) show("trace", context);
    return _URC_NO_REASON;
}
OPAQUE static int walk(int n) {
    if (n) { int r = walk(n - 1); BARRIER(); return r; }
    int count = 0;
    _Unwind_Backtrace(trace, &count);
#ifdef COUNTED
    printf("%d frames\n", count);
#endif
    void *frames[64];
    int all = backtrace(frames, 64), here = 0;
    for (int i = 0; i < all; i++) here += _Unwind_FindEnclosingFunction((char *)frames[i] - 1) == (void *)walk;
    printf("backtrace %d in walk %d\n", all, here);
    return count;
}
OPAQUE static int compare(const void *a, const void *b) {
    static int once;
    if (!once++) { int jumped = setjmp(back); if (!jumped) down(2, base); walk(2); BARRIER(); }
    return *(const int *)a - *(const int *)b;
}
OPAQUE static void all(void) {
    char here;
    base = &here + 64;
    for (volatile int i = 0; i < 3; i++) { int jumped = setjmp(back); if (!jumped) down(4, base); printf("jumped %d\n", jumped); }
    int jumped = setjmp(back);
    if (!jumped) down(4, 0);
    printf("jumped %d\n", jumped);
    walk(4);
    int numbers[4] = {3, 1, 2, 0};
    qsort(numbers, 4, sizeof *numbers, compare);
}
int main(void) { all(); BARRIER(); printf("cleaned %d\n", cleaned); return 7; }
"#;

/// A personality routine of the program's own, which passes calls on to that of C++.
const PERSONALITY: &str = r#"
#include <unwind.h>
#include <cstdio>
#include <stdexcept>
#define OPAQUE __attribute__((noinline, noclone))
static char *base;
static int calls;
extern "C" _Unwind_Reason_Code __real___gxx_personality_v0(int, _Unwind_Action, _Unwind_Exception_Class, _Unwind_Exception *, _Unwind_Context *);
extern "C" _Unwind_Reason_Code __wrap___gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class c, _Unwind_Exception *e, _Unwind_Context *context) {
    unsigned long ip = _Unwind_GetIP(context), start = _Unwind_GetRegionStart(context);
    printf("%d %d: cfa %ld ip %ld lsda %d around %d\n", calls++, actions, (long)(_Unwind_GetCFA(context) - (unsigned long)base), (long)(ip - start),
        _Unwind_GetLanguageSpecificData(context) != 0, _Unwind_FindEnclosingFunction((void *)(ip - 1)) == (void *)start);
    return __real___gxx_personality_v0(version, actions, c, e, context);
}
struct Guard { ~Guard() { printf("cleaned\n"); } };
OPAQUE int thrower(int n) { Guard guard; if (n) { int r = thrower(n - 1); __asm__ volatile(""); return r; } throw std::runtime_error("x"); }
OPAQUE int catcher(int n) { try { return thrower(n); } catch (const std::logic_error &) { return 1; } }
int main() {
    char here;
    base = &here;
    for (int i = 0; i < 3; i++) try { catcher(i); } catch (const std::exception &e) { printf("caught %s\n", e.what()); }
    return 5;
}
"#;

/// libunwind's own functions, nongnu.org's and LLVM's, which have the same names.
const LIBUNWIND: &str = r#"
#define UNW_LOCAL_ONLY
#include <libunwind.h>
#include <stdio.h>
#define OPAQUE __attribute__((noinline, noclone))
static char *base;
OPAQUE int walk(int n) {
    if (n) { int r = walk(n - 1); __asm__ volatile(""); return r; }
    unw_context_t here;
    unw_cursor_t cursor;
    unw_getcontext(&here);
    unw_init_local(&cursor, &here);
    int steps = 0;
    do {
        unw_word_t ip = 0, sp = 0;
        unw_proc_info_t info;
        unw_get_reg(&cursor, UNW_REG_IP, &ip);
        unw_get_reg(&cursor, UNW_REG_SP, &sp);
        if (unw_get_proc_info(&cursor, &info)) info.start_ip = ip;
        printf("%d: sp %ld ip %ld\n", steps, (long)(sp - (unw_word_t)base), (long)(ip - info.start_ip));
    } while (++steps < 8 && unw_step(&cursor) > 0);
    while (unw_step(&cursor) > 0) steps++;
#ifdef BACKTRACE
    void *frames[64];
    printf("%d\n", unw_backtrace(frames, 64));
#endif
    return steps;
}
int main(void) { char here; base = &here; printf("%d steps\n", walk(5)); return 4; }
"#;

/// Compiles a program, or returns `None` if a library of this build is not installed.
fn built(place: &Place, name: &str, compiler: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let file = place.path(&format!("{name}.{}", if compiler == "g++" { "cc" } else { "c" }));
    fs::write(&file, source).unwrap();
    let program = place.path(name);
    let mut command = Command::new(compiler);
    command.args(["-O1", "-w", "-fexceptions", "-o"]).arg(&program).arg(&file).args(flags);
    compile::compile(command).ok().map(|()| program)
}

/// Runs a program alone and in each mode: the output and the status must be the same.
fn is_as_alone(place: &Place, program: &Path, preloaded: Option<&Path>) {
    let profile = place.path("gmon.out");
    let with = |mut command: Command| {
        if let Some(library) = preloaded {
            command.env("LD_PRELOAD", library);
        }
        run::run(command, None, LIMIT).unwrap()
    };
    let alone = with(Command::new(program));
    assert!(!alone.stdout_text().is_empty(), "{}", alone.stderr_text());
    for mode in MODES {
        let options = [&["-q"], mode].concat();
        let ours = with(tool::command(&options, &profile, program, &[]).unwrap());
        let what = format!("{} {mode:?}: {}", program.display(), ours.stderr_text());
        assert_eq!((ours.code(), ours.stdout_text()), (alone.code(), alone.stdout_text()), "{what}");
    }
}

/// Where LLVM's libunwind is, with its headers, if it is installed.
fn llvm() -> Option<(PathBuf, PathBuf)> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    let mut found = folders.map(|folder| folder.join("lib/libunwind.so")).filter(|library| library.is_file());
    Some((found.next()?, PathBuf::from("/usr/include/libunwind")))
}

fn stop_functions_and_callbacks() {
    let place = Place::new();
    let builds: [(&str, &[&str]); 4] = [
        ("shared", &["-DCOUNTED"]),
        // The start of a static program has no description, and the walk goes on from there as it happens.
        ("static", &["-static"]),
        ("static-libgcc", &["-static-libgcc", "-DCOUNTED"]),
        ("pointers", &["-DCOUNTED", "-fno-omit-frame-pointer", "-O2"]),
    ];
    for (name, flags) in builds {
        is_as_alone(&place, &built(&place, name, "gcc", WALKS, flags).unwrap(), None);
    }
    match built(&place, "nongnu", "gcc", WALKS, &["-lunwind"]) {
        Some(program) => is_as_alone(&place, &program, None),
        None => skip::skipped("stop_functions_and_callbacks", "no libunwind.so"),
    }
    if let Some((library, _)) = llvm() {
        let library = library.to_str().unwrap();
        is_as_alone(&place, &built(&place, "llvm", "gcc", WALKS, &[library]).unwrap(), None);
    }
}

fn personality_routines() {
    let place = Place::new();
    let wrapped = "-Wl,--wrap=__gxx_personality_v0";
    let builds: [(&str, &[&str]); 3] =
        [("shared", &[]), ("static", &["-static"]), ("static-both", &["-static-libgcc", "-static-libstdc++"])];
    for (name, flags) in builds {
        let program = built(&place, name, "g++", PERSONALITY, &[&[wrapped], flags].concat()).unwrap();
        is_as_alone(&place, &program, None);
    }
}

fn walks_with_libunwind() {
    let place = Place::new();
    match built(&place, "nongnu", "gcc", LIBUNWIND, &["-DBACKTRACE", "-lunwind"]) {
        Some(program) => is_as_alone(&place, &program, None),
        None => skip::skipped("walks_with_libunwind", "no libunwind.h"),
    }
    if let Some((library, headers)) = llvm() {
        let flags = ["-I", headers.to_str().unwrap(), library.to_str().unwrap()];
        is_as_alone(&place, &built(&place, "llvm", "gcc", LIBUNWIND, &flags).unwrap(), None);
    }
}
