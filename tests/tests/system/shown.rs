//! What gprof prints: a function that did not run has neither time nor calls.
//!
//! The tests run gprof itself. The programs define which of their functions run: those with names `never...`
//! do not.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use gprofinject_tests::elf::Program;
use gprofinject_tests::place::Place;
use gprofinject_tests::view;
use serde_json::Value;

gprofinject_tests::trials! {
    together:
        hidden_names_are_charged_to_what_they_are_part_of,
        global_names_are_all_shown,
        what_gprof_cannot_show_is_said_only_where_it_matters,
        samples_at_odd_addresses,
        samples_of_unaligned_functions,
        gaps_between_functions,
        calls_from_code_without_a_symbol;
}

const MODES: [&[&str]; 4] = [
    &["--hooks=both", "--sampler=perf"],
    &["--hooks=entry", "--sampler=perf"],
    &["--hooks=none", "--sampler=perf"],
    &["--hooks=both", "--sampler=timer"],
];

/// Returns what gprof prints for each function: the share of time, and the calls.
fn printed(program: &Path, profile: &Path) -> BTreeMap<String, (f64, u64)> {
    let gprof = Command::new("gprof").args(["-b", "-p"]).args([program, profile]).output().unwrap();
    assert!(gprof.status.success(), "{}", String::from_utf8_lossy(&gprof.stderr));
    let text = String::from_utf8(gprof.stdout).unwrap();
    let row = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let time: f64 = words.first()?.parse().ok()?;
        // Without calls there are four columns.
        let calls = words[3..].iter().find_map(|word| word.parse().ok()).filter(|_| words.len() > 4);
        Some(((*words.last()?).to_owned(), (time, calls.unwrap_or(0))))
    };
    text.lines().filter_map(row).collect()
}

/// Runs the program in a mode. Returns what gprof prints, and the `--stats` file.
fn run(place: &Place, program: &str, mode: &[&str]) -> (BTreeMap<String, (f64, u64)>, Value, String) {
    let program = format!("./{program}");
    let arguments = [mode, &["-o", "gmon.out", "--stats", "stats.json", "--rate=2000", &program]].concat();
    let outcome = place.run(&arguments);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    let flat = printed(&place.path(&program), &place.path("gmon.out"));
    let never: Vec<_> = flat.iter().filter(|(name, _)| name.starts_with("never")).collect();
    assert!(never.is_empty(), "{mode:?}: these did not run: {never:?} of {flat:?}");
    let stats = std::fs::read(place.path("stats.json")).unwrap();
    (flat, serde_json::from_slice(&stats).unwrap(), outcome.stderr_text())
}

/// Names as compilers make them, each for a function after one that does not run. `gone` and `lost` are not
/// the functions from which `gone.isra.0` and `lost.part.0` were made.
const CLONES: &str = r#"
#include <time.h>
#define FAR __attribute__((noinline, noclone, noipa))
#define NEVER(n) FAR void never##n(void) { __asm__ volatile("nop\nnop\nnop"); }
static inline __attribute__((always_inline)) void spin(void) {
    for (int i = 0; i < 200000; i++) __asm__ volatile("");
}
NEVER(1)
FAR static void rest(int n) __asm__("work.part.0");
FAR static void rest(int n) { spin(); __asm__ volatile("" : : "r"(n)); }
FAR void work(int n) { if (n) rest(n); __asm__ volatile(""); }
NEVER(2)
FAR static void version(void) __asm__("gone.isra.0");
FAR static void leaf(void) { __asm__ volatile(""); }
FAR static void version(void) { spin(); leaf(); __asm__ volatile(""); }
NEVER(3)
FAR static void part(void) __asm__("lost.part.0");
FAR static void part(void) { spin(); __asm__ volatile(""); }
NEVER(4)
FAR static void dollar(void) __asm__("_ZN3FooLT$GT$3bar");
FAR static void dollar(void) { spin(); __asm__ volatile(""); }
NEVER(5)
FAR void other(int n) { rest(n); __asm__ volatile(""); }
int main(int argc, char **argv) {
    for (int i = 0; i < 500; i++) { work(1); work(0); other(1); other(1); version(); part(); dollar(); }
    return 0;
}
"#;

fn clones(place: &Place) {
    let unrelated =
        "void gone(void) { __asm__ volatile(\"\"); } void lost(void) { __asm__ volatile(\"\"); }\n";
    std::fs::write(place.path("unrelated.c"), unrelated).unwrap();
    let unrelated = place.path("unrelated.c");
    let flags = ["-O2", "-fno-toplevel-reorder", "-fno-inline-functions", unrelated.to_str().unwrap()];
    place.c("clones", CLONES, &flags);
}

fn hidden_names_are_charged_to_what_they_are_part_of() {
    let place = Place::new();
    clones(&place);
    for mode in MODES {
        // On a busy machine, a short function may get no sample.
        let are_sampled = |stats: &serde_json::Value| {
            stats["unseen"].as_array().unwrap().iter().all(|unseen| unseen["samples"].as_u64() != Some(0))
        };
        let mut last = run(&place, "clones", mode);
        for _ in 0..4 {
            if are_sampled(&last.1) {
                break;
            }
            last = run(&place, "clones", mode);
        }
        let (flat, stats, said) = last;
        assert!(!flat.contains_key("gone") && !flat.contains_key("lost"), "{mode:?}: {flat:?}");
        let hooked = mode[0] != "--hooks=none";
        assert!(flat["work"].0 > 0.0, "{mode:?}: {flat:?}");
        let unseen = stats["unseen"].as_array().unwrap();
        let of = |name: &str| {
            let found = unseen.iter().find(|unseen| unseen["name"] == name).unwrap();
            (found["calls"].as_u64().unwrap(), found["samples"].as_u64().unwrap())
        };
        for name in ["gone.isra.0", "lost.part.0", "_ZN3FooLT$GT$3bar"] {
            let (calls, samples) = of(name);
            assert_eq!(calls, if hooked { 500 } else { 0 }, "{mode:?}: {name}");
            assert!(samples > 0, "{mode:?}: {name}");
        }
        assert_eq!(unseen.len(), 3, "{mode:?}: {unseen:?}");
        assert!(said.contains("gprof cannot show 3 functions, gmon can"), "{said}");
        // The view of the whole process has the functions that gprof leaves out.
        assert!(said.contains("next: gmon\n"), "{said}");
        let [symbols, whole] = view::written(&place.path("gmon.pb.gz")).unwrap();
        let whole = printed(&symbols, &whole);
        let never: Vec<_> = whole.keys().filter(|name| name.starts_with("never")).collect();
        assert!(never.is_empty(), "{mode:?}: these did not run: {never:?} of {whole:?}");
        for name in ["gone.isra.0", "lost.part.0", "_ZN3FooLT$GT$3bar"] {
            let (time, calls) = whole[name];
            assert!(time > 0.0 && calls == if hooked { 500 } else { 0 }, "{mode:?}: {name}: {whole:?}");
        }
        if hooked {
            let calls = |name: &str| whole[name].1;
            assert_eq!((calls("work.part.0"), calls("work"), calls("leaf")), (1500, 1000, 500), "{mode:?}");
            // 1000 calls by main, and 1000 of its rest by `other`. When `work` itself continues there, that
            // is not a call.
            assert_eq!(flat["work"].1, 2000, "{mode:?}");
            assert_eq!((flat["other"].1, flat["leaf"].1), (1000, 500), "{mode:?}");
        }
    }
}

fn global_names_are_all_shown() {
    let place = Place::new();
    clones(&place);
    let mut objcopy = Command::new("objcopy");
    objcopy.args(["-w", "--globalize-symbol=*"]).args([place.path("clones"), place.path("shown")]);
    assert!(objcopy.status().unwrap().success());
    let (flat, stats, said) = run(&place, "shown", MODES[0]);
    assert_eq!(stats["unseen"].as_array().unwrap().len(), 0);
    assert!(!said.contains("cannot be shown"), "{said}");
    assert_eq!((flat["gone.isra.0"].1, flat["work.part.0"].1, flat["work"].1), (500, 1500, 1000));
}

/// gprof leaves out the constructors of each C++ file: one call, and no time that matters.
fn what_gprof_cannot_show_is_said_only_where_it_matters() {
    const SOURCE: &str = r#"
static int start = 0;
// The name that g++ gives to the constructors of a file without a global name.
__attribute__((constructor)) static void construct(void) __asm__("_GLOBAL__sub_I_start.cc");
static void construct(void) { start++; }
__attribute__((noinline, noipa)) int step(int n) { return n + 1; }
__attribute__((noinline, noipa)) static int hidden(int n) __asm__("hidden.part.7");
static int hidden(int n) { return n + 2; }
int main(int argc, char **argv) {
    int n = start;
    for (int i = 0; i < 1000; i++) { n = step(n); if (i < 5 * (argc - 1)) n = hidden(n); }
    return n < 0;
}
"#;
    let place = Place::new();
    place.compile("g++", "constructors", SOURCE, &["-fno-toplevel-reorder"]).unwrap();
    let remark = "gprof cannot show";
    // The calls of the hidden function, of 1000: none, 0.5 % and 1.5 %.
    for (arguments, is_said) in [(0, false), (1, false), (3, true)] {
        let mut command = vec!["-o", "gmon.out", "--rate=0", "--stats=stats.json", "./constructors"];
        command.extend(["x"; 3].iter().take(arguments));
        let outcome = place.run(&command);
        assert_eq!(outcome.stderr_text().contains(remark), is_said, "{}", outcome.stderr_text());
        // `--stats` always contains it, and `-v` shows it.
        let stats: Value = serde_json::from_slice(&std::fs::read(place.path("stats.json")).unwrap()).unwrap();
        let hidden = if arguments == 0 { 1 } else { 2 };
        assert_eq!(stats["unseen"].as_array().unwrap().len(), hidden, "{}", stats["unseen"]);
        let verbose = [&["-v"], command.as_slice()].concat();
        assert!(place.run(&verbose).stderr_text().contains(remark));
    }
}

/// Functions at odd addresses beside functions that never run.
const ODD: &str = r#"
    .text
    .macro function name
    .globl \name
    .type \name, @function
\name:
    .endm
    .macro finish name
    .size \name, . - \name
    .endm
    .p2align 4
    function never1
    nop
    nop
    ret
    finish never1
    # At an odd address; all of its time is in its first two bytes.
    function odd
    dec %edi
    jne odd
    ret
    finish odd
    # The loop's jump ends one byte before the next function, which is at an odd address again.
    function even
    nop
1:  dec %edi
    .byte 0x0f, 0x1f, 0x00
    jne 1b
    ret
    finish even
    function never2
    nop
    ret
    finish never2
    # One byte, between two functions that begin in its bin.
    .p2align 4
    function never4
    nop
    ret
    finish never4
    function tiny
    ret
    finish tiny
    function never5
    ret
    finish never5
    .section .note.GNU-stack, "", @progbits
"#;

const ODD_MAIN: &str = r#"
void odd(int n);
void even(int n);
void tiny(void);
int main(void) {
    for (int i = 0; i < 1500; i++) { odd(100000); even(100000); }
    for (int i = 0; i < 60000000; i++) tiny();
    return 0;
}
"#;

fn samples_at_odd_addresses() {
    let place = Place::new();
    std::fs::write(place.path("odd.s"), ODD).unwrap();
    let assembly = place.path("odd.s");
    let program = place.c("odd-program", ODD_MAIN, &["-O1", assembly.to_str().unwrap()]);
    let program = Program::read(&program).unwrap();
    let address = |name: &str| program.named(name).unwrap().address;
    assert_eq!(["odd", "never2", "tiny"].map(|name| address(name) % 2), [1, 1, 0]);
    assert_eq!(address("never5"), address("tiny") + 1, "they begin in the same bin");
    for mode in MODES {
        let (flat, stats, _) = run(&place, "odd-program", mode);
        assert!(flat["odd"].0 > 5.0 && flat["even"].0 > 5.0, "{mode:?}: {flat:?}");
        if mode[0] == "--hooks=none" {
            // gprof has no bin for it.
            let unseen = &stats["unseen"];
            assert_eq!(
                (unseen.as_array().unwrap().len(), &unseen[0]["name"]),
                (1, &"tiny".into()),
                "{unseen}"
            );
        } else {
            assert_eq!((flat["odd"].1, flat["even"].1), (1500, 1500), "{mode:?}");
            assert_eq!(flat["tiny"].1, 60_000_000, "{mode:?}");
        }
    }
}

/// The same for compiled functions, which begin at any address with -Os.
fn samples_of_unaligned_functions() {
    let mut source = String::from("#define FAR __attribute__((noinline, noclone, noipa))\n");
    for i in 0..40 {
        // Loops of several lengths, one of three of which runs.
        let nops = "nop\\n".repeat(i % 5);
        let name = if i % 3 == 0 { format!("hot{i}") } else { format!("never{i}") };
        source += &format!(
            "FAR void {name}(int n) {{ while (n--) __asm__ volatile(\"{nops}\"); __asm__ volatile(\"{nops}\"); }}\n"
        );
    }
    source += "int main(int c, char **v) { for (int i = 0; i < 300; i++) {\n";
    for i in 0..40 {
        let call =
            if i % 3 == 0 { format!("hot{i}(100000);\n") } else { format!("if (c > 9) never{i}(c);\n") };
        source += &call;
    }
    source += "} return 0; }\n";
    for flags in [&["-O1"][..], &["-Os"], &["-O2", "-falign-functions=1"]] {
        let place = Place::new();
        place.c("unaligned", &source, &[flags, &["-fno-toplevel-reorder"]].concat());
        for mode in MODES {
            let (flat, stats, _) = run(&place, "unaligned", mode);
            assert!(
                stats["unseen"].as_array().unwrap().is_empty(),
                "{flags:?} {mode:?}: {}",
                stats["unseen"]
            );
            let hot = flat.iter().filter(|(name, (time, _))| name.starts_with("hot") && *time > 0.0).count();
            assert!(hot > 3, "{flags:?} {mode:?}: {flat:?}");
            let calls = flat.iter().filter(|(name, _)| name.starts_with("hot")).map(|(_, (_, calls))| calls);
            let expected = if mode[0] == "--hooks=none" { 0 } else { 14 * 300 };
            assert_eq!(calls.sum::<u64>(), expected, "{flags:?} {mode:?}");
        }
    }
}

/// Calls through the PLT, and from code that no symbol describes: gprof would charge the preceding function.
fn gaps_between_functions() {
    const SOURCE: &str = r#"
#include <stdlib.h>
__attribute__((noinline, noipa)) void called(void) { __asm__ volatile("nop\nnop\nnop\nnop\nnop\nnop"); }
__asm__(".text\n.globl never1\n.type never1, @function\nnever1: nop\nret\n.size never1, . - never1\n"
    ".Lnameless: sub $8, %rsp\ncall called\nadd $8, %rsp\nmov $20000, %ecx\n1: dec %ecx\njne 1b\nret\n"
    ".globl start_of_it\n.type start_of_it, @function\nstart_of_it: jmp .Lnameless\n.size start_of_it, . - start_of_it\n");
void start_of_it(void);
int main(void) {
    for (int i = 0; i < 3000; i++) { start_of_it(); for (int k = 0; k < 3000; k++) abs(k), atoi("1"); }
    return 0;
}
"#;
    let place = Place::new();
    place.c("gaps", SOURCE, &["-O1", "-fno-builtin"]);
    for mode in MODES {
        let (flat, _, _) = run(&place, "gaps", mode);
        assert!(flat.get("_init").is_none_or(|init| init.0 == 0.0), "{mode:?}: {flat:?}");
        if mode[0] != "--hooks=none" {
            assert_eq!(flat["called"].1, 3000, "{mode:?}");
        }
    }
}

/// A function without room for a hook of its own, called from code with a symbol and from code without.
/// Either all of its calls are counted, or none and it is listed as not hooked.
fn calls_from_code_without_a_symbol() {
    const SOURCE: &str = r#"
__asm__(".text\n.globl before\n.type before, @function\nbefore: mov $1, %eax\nret\n.size before, . - before\n"
    ".globl called\n.type called, @function\ncalled: ret\n.size called, 1\n"
    ".Lnameless: sub $8, %rsp\nCALL\nadd $8, %rsp\nret\n"
    ".globl start_of_it\n.type start_of_it, @function\nstart_of_it: jmp .Lnameless\n.size start_of_it, . - start_of_it\n");
void start_of_it(void), called(void), before(void);
int main(void) {
    for (int i = 0; i < 3000; i++) { start_of_it(); before(); if (i % 3 == 0) called(); }
    return 0;
}
"#;
    // How the code without a symbol calls the function, and how often the function is called in total.
    let cases = [
        ("call called", 4000),
        ("lea called(%rip), %rdx\ncall *%rdx", 4000),
        // Data that includes the call if it is decoded as an instruction.
        ("jmp 1f\n.byte 0x48, 0xb8, 1\n1: call called", 4000),
        ("nop", 1000),
    ];
    for (call, calls) in cases {
        let place = Place::new();
        let source = SOURCE.replace("CALL", &call.replace('\n', "\\n"));
        place.c("nameless", &source, &["-O1", "-falign-functions=1"]);
        let list = place.run(&["--list", "./nameless"]).stdout_text();
        let called = list.lines().find(|line| line.split_whitespace().nth(2) == Some("called")).unwrap();
        for mode in &MODES[..2] {
            let (flat, _, _) = run(&place, "nameless", mode);
            assert_eq!(flat["before"].1, 3000, "{call} {mode:?}");
            match called.contains("refused") {
                true => assert_eq!(flat.get("called").map_or(0, |called| called.1), 0, "{call} {mode:?}"),
                false => assert_eq!(flat["called"].1, calls, "{call} {mode:?}: {called}"),
            }
        }
        // If all of its calls are known, it is hooked.
        assert_eq!(called.contains("refused"), call != "nop", "{called}");
    }
}
