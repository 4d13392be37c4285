//! Programs whose code or data takes more than the 2 GiB that a jump reaches. They print and return what they do alone, and
//! what is hooked is called as often as the source says.

use std::collections::BTreeMap;
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::attached::Subject;
use gprofinject_tests::elf::Program;
use gprofinject_tests::gprofdata;
use gprofinject_tests::place::Place;

use crate::libraries::same;

gprofinject_tests::trials! {
    together:
        code_apart,
        more_functions_at_the_far_end,
        static_programs,
        programs_with_musl,
        gigabytes_of_data,
        libraries_with_code_apart,
        processes_that_run;
}

/// A program whose functions marked with `FAR` are in a section of their own. For each line of input that has a number, it does
/// that many rounds.
const SOURCE: &str = r#"
#include <stdio.h>
#define NEAR __attribute__((noinline))
#define FAR __attribute__((noinline, section(".far")))
A int one(int x) { __asm__ volatile(""); return x + 1; }
B int leads(int x) { __asm__ volatile(""); return one(x) + 1; }
B int jumps(int x) { __asm__ volatile(""); return x & 1 ? one(x) : leads(x); }
/* An addition that the compiler cannot see through, so that it makes no loop of a recursion. */
#define PLUS(a, b) ({ int sum = (a); __asm__("" : "+r"(sum)); sum + (b); })
B int itself(int x) { __asm__ volatile(""); return x ? PLUS(itself(x - 1), one(x)) : 0; }
B int tiny(void) { __asm__ volatile(""); return 3; }
A int again(int x) { __asm__ volatile(""); return x ? PLUS(again(x - 1), 1) : 0; }
A int through(int (*f)(int), int x) { return f(x) + 1; }
A int back(int x) { __asm__ volatile(""); return jumps(x + 3); }
A int round_of(int i) {
    return back(i) + through(leads, i) + through(one, i) + again(5) + itself(7) + tiny();
}
int main(void) {
    int x = 0, n;
    for (int i = 0; i < 100; i++) x += round_of(i);
    printf("ready\n");
    fflush(stdout);
    while (scanf("%d", &n) == 1) {
        while (n--) x += round_of(n);
        printf("done\n");
        fflush(stdout);
    }
    printf("%d\n", x);
    return 7;
}
"#;

/// How often each function is called in 100 rounds.
const CALLS: [(&str, u64); 9] = [
    ("one", 50 + 50 + 100 + 100 + 700),
    ("leads", 50 + 100),
    ("jumps", 100),
    ("itself", 800),
    ("tiny", 100),
    ("again", 600),
    ("through", 200),
    ("back", 100),
    ("round_of", 100),
];

/// Most functions are near the rest of the program.
const MOST_NEAR: [&str; 3] = ["-DA=NEAR", "-DB=FAR", "-mcmodel=large"];
const MOST_FAR: [&str; 3] = ["-DA=FAR", "-DB=FAR", "-mcmodel=large"];
/// Without frame descriptions, which do not reach so far either. With padding, without which the shortest would not be hooked, and a
/// function after an indirect jump might be a label of it.
const APART: [&str; 4] = [
    "-fno-asynchronous-unwind-tables",
    "-foptimize-sibling-calls",
    "-falign-functions=16",
    "-Wl,--section-start=.far=0x300000000",
];

/// Compiles the program, if that is possible here.
fn built(compiler: &str, flags: &[&[&str]]) -> Option<Place> {
    let place = Place::new();
    match place.compile(compiler, "prog", SOURCE, &flags.concat()) {
        Ok(_) => Some(place),
        Err(error) => {
            skip::skipped("far", &format!("{compiler} {flags:?}: {error:#}"));
            None
        }
    }
}

/// Returns how often each function was called, by the profile.
fn called(place: &Place) -> BTreeMap<String, u64> {
    let program = Program::read(&place.path("prog")).unwrap();
    let profile = gprofdata::read(&place.path("gmon.out")).unwrap();
    let mut calls = BTreeMap::new();
    for ((_, to), count) in profile.arcs {
        *calls.entry(program.entry(to).unwrap().name().to_owned()).or_default() += count;
    }
    calls
}

/// Checks the calls of all functions that have some, and that those in `hooked` have.
fn counted(place: &Place, hooked: &[&str], what: &str) {
    let calls = called(place);
    for (name, count) in CALLS {
        match calls.get(name) {
            Some(&calls) => assert_eq!(calls, count, "{what}: {name}"),
            None => assert!(!hooked.contains(&name), "{what}: {name} has no calls"),
        }
    }
}

/// Runs the program with these options, which must change nothing; if functions are left out, this must be said.
fn runs(place: &Place, options: &[&[&str]], hooked: &[&str]) {
    for options in options {
        let outcome = same(place, options, &[]);
        let said = outcome.stderr_text();
        if !options.contains(&"none") {
            counted(place, hooked, &format!("{options:?}: {said}"));
            assert_eq!(hooked.len() < CALLS.len(), said.contains("hooks reach 2 GiB"), "{options:?}: {said}");
        }
    }
}

const USUAL: [&[&str]; 2] = [&["--hooks", "both", "--libs", "none"], &["--hooks", "entry"]];
const MORE: [&[&str]; 5] = [
    &["--times"],
    &["--trace", "trace"],
    &["--libs", "all"],
    &["--count", "blocks", "--hooks", "both"],
    &["--hooks", "none"],
];
const NEAR: [&str; 5] = ["one", "again", "through", "back", "round_of"];

fn code_apart() {
    let place = built("gcc", &[&MOST_NEAR, &APART, &["-no-pie", "-fno-pie"]]).unwrap();
    runs(&place, &[&USUAL[..], &MORE].concat(), &NEAR);
    let list = place.run(&["--list", "./prog"]).stdout_text();
    assert_eq!(list.lines().filter(|line| line.contains("refused: far")).count(), 4, "{list}");
    let pie = built("gcc", &[&MOST_NEAR, &APART, &["-pie", "-fPIE"]]).unwrap();
    runs(&pie, &USUAL, &NEAR);
    let at = |at: &str| {
        let at = format!("-Wl,--section-start=.far={at}");
        built("gcc", &[&MOST_NEAR, &APART, &["-no-pie", "-fno-pie", &at]]).unwrap()
    };
    // Out of reach, but not of an arena between them.
    runs(&at("0x80400000"), &USUAL, &CALLS.map(|(name, _)| name));
    // At the other end of the address space. There is no memory for counters of such an extent, which is said.
    let place = at("0x7f0000000000");
    for options in USUAL {
        let said = same(&place, options, &[]).stderr_text();
        assert!(said.contains("hooks reach 2 GiB") && said.contains("no memory for counters"), "{said}");
    }
}

/// The arena is near the greater part of the functions, in the gap between segments.
fn more_functions_at_the_far_end() {
    for kind in [["-no-pie", "-fno-pie"], ["-pie", "-fPIE"]] {
        let place = built("gcc", &[&MOST_FAR, &APART, &kind]).unwrap();
        let all = CALLS.map(|(name, _)| name);
        for options in USUAL {
            same(&place, options, &[]);
            counted(&place, &all, &format!("{kind:?} {options:?}"));
        }
    }
}

fn static_programs() {
    for kind in [["-static", "-fno-pie"], ["-static-pie", "-fPIE"]] {
        let place = built("gcc", &[&MOST_NEAR, &APART, &kind]).unwrap();
        runs(&place, &[USUAL[0], MORE[0]], &NEAR);
    }
}

fn programs_with_musl() {
    if !skip::have("musl-gcc") {
        return skip::skipped("far::programs_with_musl", "no musl-gcc");
    }
    for kind in ["-static", "-no-pie"] {
        let Some(place) = built("musl-gcc", &[&MOST_NEAR, &APART, &[kind, "-fno-pie"]]) else { continue };
        runs(&place, &USUAL[..1], &NEAR);
    }
}

/// Arrays of gigabytes lie between the code and everything above it.
fn gigabytes_of_data() {
    const HUGE: &str = "char huge[3ul << 30], other[1ul << 31];\n";
    for kind in [["-no-pie", "-fno-pie"], ["-pie", "-fPIE"]] {
        for model in ["-mcmodel=medium", "-mcmodel=large"] {
            let place = Place::new();
            let touch = "return x + 1 + huge[x & 255] + other[(x & 255l) << 22];";
            let source = HUGE.to_owned() + &SOURCE.replacen("return x + 1;", touch, 1);
            place.c("prog", &source, &["-DA=NEAR", "-DB=NEAR", model, kind[0], kind[1]]);
            runs(&place, &USUAL[..1], &CALLS.map(|(name, _)| name));
        }
    }
}

/// In a library, whose arena is elsewhere again.
fn libraries_with_code_apart() {
    let place = Place::new();
    const LIBRARY: &str = "__attribute__((noinline)) int one(int x) { __asm__ volatile(\"\"); return x + 1; }\n\
        __attribute__((noinline, section(\".far\"))) int far_one(int x) { __asm__ volatile(\"\"); return one(x) + 1; }\n";
    const USER: &str = "#include <stdio.h>\nint one(int), far_one(int);\nint main(void) { int x = 0;\n\
        for (int i = 0; i < 100; i++) x += far_one(i) + one(i); printf(\"%d\\n\", x); return 3; }\n";
    let library = place.c("libapart.so", LIBRARY, &[&["-shared", "-fPIC", "-mcmodel=large"][..], &APART].concat());
    place.c("prog", USER, &[library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    for options in [&["-q"][..], &["-q", "--libs", "all", "--hooks", "entry"], &["-q", "--times"]] {
        same(&place, options, &[]);
    }
}

/// Attaching to such a process leaves it as it was, whatever is hooked.
fn processes_that_run() {
    let builds: [(&[&str], &[&str]); 3] = [
        (&MOST_NEAR, &["-no-pie", "-fno-pie"]),
        (&MOST_NEAR, &["-static", "-fno-pie"]),
        (&MOST_FAR, &["-static", "-fno-pie"]),
    ];
    for (where_to, kind) in builds {
        let place = built("gcc", &[where_to, &APART, kind]).unwrap();
        let command = Command::new(place.path("prog"));
        let mut subject = Subject::start(place, command);
        let before = subject.code();
        for hooks in ["--hooks=both", "--hooks=entry"] {
            let attached = subject.attached(&["-v", hooks]);
            subject.step(100);
            let (status, said) = attached.end("-INT");
            assert_eq!(status, Some(0), "{kind:?} {hooks}: {said}");
            let hooked: &[&str] = if where_to == MOST_NEAR { &NEAR } else { &[] };
            counted(&subject.place, hooked, &format!("{kind:?} {hooks}: {said}"));
            assert_eq!(subject.changed(&before), None, "{kind:?} {hooks}: {said}");
        }
        subject.finish();
    }
}
