//! Interpreters whose operations end in tail calls, in every mode, compared with what they count themselves; and code that a runtime has
//! compiled for itself, and decodes.
//!
//! `programs/tail-tables.c`, `programs/goto-tables.c` and `programs/goto-tails.c` have the arcs.

use std::collections::BTreeMap;
use std::fs;

use gprofinject_skip as skip;
use gprofinject_tests::elf::Program;
use gprofinject_tests::place::{Place, finish};
use gprofinject_tests::gprofdata;

use crate::libraries::{same, whole};

gprofinject_tests::trials! {
    together:
        interpreters,
        interpreters_in_libraries,
        code_that_a_runtime_decodes,
        mono;
}

const MODES: [&[&str]; 6] = [
    &["--hooks=both"],
    &["--hooks=entry"],
    &["--times"],
    &["--trace=calls.trace"],
    &["--count=blocks"],
    &["--paths", "--count=blocks"],
];

/// Each operation ends in a tail call through a table that begins with its own start or another one's, and prints how often it ran.
const OPERATIONS: &str = r"
typedef long op(const unsigned char *, long, long *);
op plus, twice, jumps, halt;
static op *const ops[] = {plus, twice, jumps, halt};
#if defined(__clang__) && defined(__OPTIMIZE__)
#define TAIL __attribute__((musttail))
#else
#define TAIL
#endif
__attribute__((noinline)) long plus(const unsigned char *p, long v, long *c) { c[0]++; TAIL return ops[*p & 3](p + 1, v + 1, c); }
__attribute__((noinline)) long twice(const unsigned char *p, long v, long *c) { c[1]++; TAIL return ops[*p & 3](p + 1, v * 2, c); }
__attribute__((noinline)) long jumps(const unsigned char *p, long v, long *c) {
    c[2]++;
    switch (v & 7) {
    case 0: v += 11; c[4]++; break;
    case 1: v ^= 21; c[4] += 2; break;
    case 2: v -= 31; c[5] += v; break;
    case 3: v *= 41; c[4] ^= 9; break;
    case 4: v = -v; c[4] += 5; break;
    case 5: v |= 61; c[5] ^= 6; break;
    default: v += c[4]; break;
    }
    TAIL return ops[*p & 3](p + 1, v, c);
}
__attribute__((noinline)) long halt(const unsigned char *p, long v, long *c) { c[3]++; return v + *p; }
long interpret(const unsigned char *p, long *c) { return ops[*p & 3](p + 1, 1, c) * 3; }
";

const MAIN: &str = r#"
#include <stdio.h>
long interpret(const unsigned char *, long *);
int main(void) {
    static unsigned char code[4002];
    long c[6] = {0}, sum = 0;
    unsigned x = 1;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4000; i++) code[i] = (x = x * 1103515245 + 12345, x >> 16) % 3;
        code[4000] = 3;
        sum += interpret(code, c);
    }
    printf("%ld plus %ld twice %ld jumps %ld halt %ld\n", sum, c[0], c[1], c[2], c[3]);
    return 0;
}
"#;

/// Checks the calls of each operation against the program's output.
fn agree(said: &str, calls: &BTreeMap<String, u64>, what: &str) {
    let words: Vec<&str> = said.split_whitespace().skip(1).collect();
    assert_eq!(words.len(), 8, "{said}");
    for pair in words.chunks(2) {
        let count = calls.get(pair[0]).copied().unwrap_or(0);
        assert_eq!(count, pair[1].parse::<u64>().unwrap(), "{what}: {}: {calls:?}", pair[0]);
    }
}

fn interpreters() {
    let flags: [(&str, &[&str]); 6] = [
        ("gcc", &["-O2"]),
        ("gcc", &["-O1", "-fno-pie", "-no-pie"]),
        ("gcc", &["-Os", "-static"]),
        ("gcc", &["-O3", "-fcf-protection", "-fno-asynchronous-unwind-tables"]),
        ("clang", &["-O2"]),
        ("clang", &["-Os", "-fno-pie", "-no-pie"]),
    ];
    for (compiler, flags) in flags {
        if !skip::have_for("tails::interpreters", &[compiler]) {
            continue;
        }
        let place = Place::new();
        place.compile(compiler, "prog", &[MAIN, OPERATIONS].concat(), flags).unwrap();
        for mode in MODES {
            let said = same(&place, &[&["-q"], mode].concat(), &[]).stdout_text();
            let program = Program::read(&place.path("prog")).unwrap();
            let mut calls = BTreeMap::new();
            for (&(_, to), &count) in &gprofdata::read(&place.path("gmon.out")).unwrap().arcs {
                *calls.entry(program.containing(to).unwrap().name().to_owned()).or_default() += count;
            }
            agree(&said, &calls, &format!("{compiler} {flags:?} {mode:?}"));
        }
    }
}

fn interpreters_in_libraries() {
    let place = Place::new();
    place.c("libops.so", OPERATIONS, &["-O2", "-fPIC", "-shared"]);
    let library = place.path("libops.so");
    place.c("prog", MAIN, &["-O2", library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    for mode in MODES {
        let said = same(&place, &[&["-q"], mode].concat(), &[]).stdout_text();
        let mut calls = BTreeMap::new();
        for ((_, to), count) in whole(&place) {
            *calls.entry(to).or_default() += count;
        }
        agree(&said, &calls, &format!("{mode:?}"));
    }
}

/// An image that has the form of those of Mono: its code calls stubs, each of which is a jump with a number behind it.
const IMAGE: &str = r#"
__asm__(".text\n.type method, @function\n.type method_2, @function\n.type plt_1, @function\n.type plt_2, @function\n"
        "method: sub $8, %rsp\ncall plt_1\ncall plt_2\ncall method_2\nadd $8, %rsp\nret\n"
        "method_2: sub $8, %rsp\ncall plt_2\nadd $8, %rsp\nret\n"
        "plt_1: jmp *slots(%rip)\n.long 0x29815\nplt_2: jmp *8+slots(%rip)\n.long 0x29818\n"
        ".data\n.p2align 3\nslots: .quad 0, 0\n.globl info\ninfo: .quad method, slots\n");
"#;

/// The runtime: it finds the stub by the call before the return address, and the number behind the stub.
const RUNTIME: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
void trampoline(void);
__asm__(".text\n.globl trampoline\n.type trampoline, @function\ntrampoline: mov (%rsp), %rdi\njmp resolve\n.size trampoline, . - trampoline\n");
static long sum;
__attribute__((noinline)) void resolve(const unsigned char *after) {
    int distance, number;
    if (after[-5] != 0xe8) { puts("not after a call"); abort(); }
    memcpy(&distance, after - 4, 4);
    const unsigned char *stub = after + distance;
    if (stub[0] != 0xff || stub[1] != 0x25) { puts("not a stub"); abort(); }
    memcpy(&number, stub + 6, 4);
    sum += number;
}
#ifdef LINKED
extern void *info[2];
#endif
int main(void) {
#ifndef LINKED
    void *library = dlopen("./image.so", RTLD_NOW);
    if (!library) { puts(dlerror()); return 9; }
    void **info = dlsym(library, "info");
#endif
    void **slots = info[1];
    slots[0] = slots[1] = (void *)trampoline;
    for (int i = 0; i < 100; i++) ((void (*)(void))info[0])();
    printf("%lx\n", sum);
    return 0;
}
"#;

fn code_that_a_runtime_decodes() {
    let place = Place::new();
    let alone = ["-shared", "-nostdlib", "-fPIC", "-fno-asynchronous-unwind-tables"];
    place.c("image.so", IMAGE, &alone);
    // The program needs the image, so that the list has it, and asks for it by its name.
    let image = place.path("image.so");
    let needs = ["-Wl,--no-as-needed", image.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"];
    place.c("prog", RUNTIME, &[&["-O2"][..], &needs].concat());
    for mode in MODES {
        for libs in ["--libs=auto", "--libs=all"] {
            let said = same(&place, &[mode, &["-v", libs]].concat(), &[]).stderr_text();
            assert!(said.contains("image.so") && said.contains("decodes and unwinds"), "{mode:?} {libs}: {said}");
        }
    }
    let list = finish(place.command(&["--list", "--libs=all", "./prog"])).stdout_text();
    let image = list.split_once("/image.so:").unwrap().1;
    assert!(image.lines().nth(1).is_some_and(|line| line.contains("refused: runtime-code")), "{list}");

    // The same image in the program itself, whose own functions are hooked.
    let place = Place::new();
    place.c("prog", &[IMAGE, RUNTIME].concat(), &["-O2", "-DLINKED"]);
    for mode in MODES {
        same(&place, &[mode, &["-q"]].concat(), &[]);
    }
    let list = finish(place.command(&["--list", "./prog"])).stdout_text();
    let line = |name: &str| list.lines().find(|line| line.split_whitespace().any(|word| word == name));
    for name in ["method", "method_2", "plt_1", "plt_2"] {
        assert!(line(name).is_some_and(|line| line.contains("refused: runtime-code")), "{name}: {list}");
    }
    assert!(line("resolve").is_some_and(|line| !line.contains("refused")), "{list}");
}

const PROGRAM: &str = r#"
using System;
using System.Collections.Generic;
using System.Linq;
class P {
    static int calls;
    static int Deep(int n) {
        if (n == 0) throw new InvalidOperationException("deep");
        try { return Deep(n - 1) + 1; } finally { calls++; }
    }
    static void Main() {
        var words = new Dictionary<string, int>();
        for (int i = 0; i < 1000; i++) words["k" + i] = i;
        for (int i = 0; i < 50; i++) try { Deep(30); } catch (InvalidOperationException e) {
            if (i == 49) Console.WriteLine(e.StackTrace.Split('\n').Length);
        }
        GC.Collect();
        var list = Enumerable.Range(0, 1000).ToList();
        list.Sort((a, b) => b - a);
        Console.WriteLine(words.Values.Sum() + " " + calls + " " + list[0]);
    }
}
"#;

/// Mono's class library is compiled ahead of time.
fn mono() {
    if !skip::have_for("tails::mono", &["mono", "mcs"]) {
        return;
    }
    let place = Place::new();
    fs::write(place.path("hello.cs"), PROGRAM).unwrap();
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(args[0]);
        finish({
            command.args(&args[1..]).current_dir(place.folder.path());
            command
        })
    };
    assert_eq!(run(&["mcs", "hello.cs"]).code(), 0);
    let alone = run(&["mono", "hello.exe"]);
    assert_eq!(alone.code(), 0, "{}", alone.stderr_text());
    for mode in [&["--hooks=both"][..], &["--hooks=entry"], &["--times"], &["--hooks=both", "--libs=all"]] {
        let outcome = finish(place.command(&[mode, &["-v", "mono", "hello.exe"]].concat()));
        let said = outcome.stderr_text();
        assert_eq!((outcome.code(), outcome.stdout_text()), (0, alone.stdout_text()), "{mode:?}: {said}");
        assert!(said.contains("mscorlib.dll.so") && said.contains("decodes and unwinds"), "{mode:?}: {said}");
    }
}
