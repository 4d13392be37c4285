//! Programs that read their own code: if that can be detected beforehand, nothing is hooked.

use std::fs;
use std::process::Command;

use gprofinject_tests::place::{LIMIT, Place};
use gprofinject_tests::run::{self, Outcome};
use gprofinject_skip as skip;
use gprofinject_tests::gprofdata;

gprofinject_tests::trials! {
    together:
        programs_that_sum_up_their_code_are_only_sampled,
        programs_built_for_gprof_are_hooked,
        one_end_alone_is_harmless,
        modules_that_check_themselves_are_known_by_name,
        executed_programs_that_sum_up_their_code_are_not_hooked,
        the_list_says_why;
}

/// A program that calls `f` a hundred times and prints the sum of the bytes between START and END.
const SUMS: &str = r#"
#include <stdio.h>
extern const unsigned char etext[], _etext[], __etext[], __executable_start[], __ehdr_start[], end[];
#define OWN __attribute__((noipa))
int main(void);
OWN int f(int x) { return x + 1; }
OWN unsigned sum(const unsigned char *p, const unsigned char *to) {
    unsigned s = 0;
    while (p < to) s = s * 31 + *p++;
    return s;
}
WAYS
int main(void) {
    int t = 0;
    for (int i = 0; i < 100; i++) t = f(t);
    printf("%u %d\n", look(), t);
    return 3;
}
"#;

/// The ways in which a program finds its own code, all of which is between these addresses.
const WAYS: [(&str, &str); 6] = [
    ("marks", "OWN unsigned look(void) { return sum(__executable_start, etext); }"),
    ("others", "OWN unsigned look(void) { return sum(__ehdr_start, _etext); }"),
    (
        "from-main",
        "OWN unsigned look(void) { return sum((void *)(main < f ? (void *)main : (void *)f), __etext); }",
    ),
    (
        "apart",
        "OWN const void *from(void) { return __executable_start; }\n\
         OWN const void *to(void) { return etext; }\n\
         OWN unsigned look(void) { return sum(from(), to()); }",
    ),
    (
        "in-data",
        "const void *volatile ends[2] = {__executable_start, etext};\n\
         OWN unsigned look(void) { return sum(ends[0], ends[1]); }",
    ),
    (
        "inlined",
        "OWN unsigned look(void) { unsigned s = 0; long n = etext - __executable_start;\n\
         for (long i = 0; i < n; i++) s = s * 31 + __executable_start[i]; return s; }",
    ),
];

/// Linkers, kinds of programs, optimisation levels.
const BUILDS: [&[&str]; 7] = [
    &["-O2"],
    &["-O0"],
    &["-O2", "-no-pie", "-fno-pie"],
    &["-O0", "-no-pie", "-fno-pie"],
    &["-O2", "-fPIC", "-Wl,--no-relax"],
    &["-O2", "-fuse-ld=gold"],
    &["-O2", "-fuse-ld=gold", "-no-pie", "-fno-pie"],
];

fn builds() -> impl Iterator<Item = &'static [&'static str]> {
    let gold = skip::have("ld.gold");
    if !gold {
        skip::skipped("own_text, with gold", "no ld.gold");
    }
    BUILDS.into_iter().filter(move |flags| gold || !flags.contains(&"-fuse-ld=gold"))
}

fn alone(place: &Place, name: &str) -> Outcome {
    let mut command = Command::new(place.path(name));
    command.current_dir(place.folder.path());
    run::run(command, None, LIMIT).unwrap()
}

/// Returns the number of calls in the profile of the run.
fn calls(place: &Place) -> u64 {
    let profile = place.path("profile");
    let calls = gprofdata::read(&profile).unwrap().calls();
    fs::remove_file(profile).unwrap();
    calls
}

fn programs_that_sum_up_their_code_are_only_sampled() {
    let place = Place::new();
    for (name, way) in WAYS {
        for flags in builds() {
            // Both addresses come from the GOT, which contains many others, so this is not detected.
            if name == "from-main" && flags.contains(&"-fPIC") {
                continue;
            }
            place.c(name, &SUMS.replace("WAYS", way), flags);
            let what = format!("{name} {flags:?}");
            let path = format!("./{name}");
            let alone = alone(&place, name);
            assert_eq!(alone.code(), 3, "{what}");
            let run = place.run(&["-o", "profile", &path]);
            let said = run.stderr_text();
            assert_eq!((run.code(), run.stdout_text()), (3, alone.stdout_text()), "{what}: {said}");
            assert!(said.contains("may check that code: it is only sampled"), "{what}: {said}");
            assert_eq!(calls(&place), 0, "{what}");
            // With hooks, the program would have seen them.
            for hooks in ["--hooks=both", "--hooks=entry"] {
                let run = place.run(&["-o", "profile", hooks, &path]);
                let said = run.stderr_text();
                assert_eq!(run.code(), 3, "{what} {hooks}: {said}");
                assert_ne!(run.stdout_text(), alone.stdout_text(), "{what} {hooks}");
                assert!(said.contains("may check that code, and finds hooks there"), "{what}: {said}");
                assert!(calls(&place) > 100, "{what} {hooks}");
            }
            let run = place.run(&["-o", "profile", "--hooks=none", &path]);
            assert_eq!(run.stdout_text(), alone.stdout_text(), "{what} none");
            assert!(!run.stderr_text().contains("may check"), "{what} none: {}", run.stderr_text());
        }
    }
}

/// In a -pg program, the C library's own start-up code takes both addresses.
fn programs_built_for_gprof_are_hooked() {
    let place = Place::new();
    let way = "OWN unsigned look(void) { return 1; }";
    for flags in builds() {
        let flags = [flags, &["-pg"]].concat();
        place.c("pg", &SUMS.replace("WAYS", way), &flags);
        let alone = alone(&place, "pg");
        for mode in ["-q", "--hooks=both", "--hooks=entry"] {
            let run = place.run(&["-o", "profile", mode, "./pg"]);
            let said = run.stderr_text();
            assert_eq!((run.code(), run.stdout_text()), (3, alone.stdout_text()), "{flags:?}: {said}");
            assert!(!said.contains("may check"), "{flags:?}: {said}");
            assert!(calls(&place) > 100, "{flags:?} {mode}");
        }
        // A -pg program that also checks itself is detected.
        place.c("both", &SUMS.replace("WAYS", WAYS[0].1), &flags);
        let run = place.run(&["-o", "profile", "./both"]);
        assert!(run.stderr_text().contains("it is only sampled"), "{flags:?}: {}", run.stderr_text());
    }
}

/// Harmless uses of one address: the bounds of data for a garbage collector, and reading the ELF header.
fn one_end_alone_is_harmless() {
    let place = Place::new();
    let ways = [
        "volatile long words; OWN unsigned look(void) {\n\
         for (const unsigned char *p = (void *)(((long)etext + 4095) & -4096); p < end; p += 4096) words++;\n\
         return words > 0; }",
        "OWN unsigned look(void) { return __executable_start[1]; }",
        // Both addresses at once, with callbacks, but far apart.
        "volatile long words; int (*volatile calls[9])(int);\n\
         OWN unsigned look(void) {\n\
         for (const unsigned char *p = (void *)(((long)etext + 4095) & -4096); p < end; p += 4096) words++;\n\
         for (int i = 0; i < 4; i++) { words += i * words; words ^= words >> 3; words *= 7; words -= i; }\n\
         words += 1; words *= 3; words ^= 5; words -= 2; words += 1; words *= 3; words ^= 5; words -= 2;\n\
         return (calls[0] = f)(words != 0) > 0; }",
    ];
    for way in ways {
        for flags in builds() {
            place.c("one", &SUMS.replace("WAYS", way), flags);
            let alone = alone(&place, "one");
            let run = place.run(&["-o", "profile", "./one"]);
            let said = run.stderr_text();
            assert_eq!((run.code(), run.stdout_text()), (3, alone.stdout_text()), "{flags:?}: {said}");
            assert!(!said.contains("may check"), "{flags:?}: {said}");
            assert!(calls(&place) > 100, "{flags:?}");
        }
    }
}

/// As BoringSSL is built for FIPS 140: an assembler's labels around the module, whose checksum is built in.
fn modules_that_check_themselves_are_known_by_name() {
    let place = Place::new();
    let source = r#"
#include <stdio.h>
asm(".text\nBORINGSSL_bcm_text_start:\n.globl module\n.type module, @function\nmodule:\n"
    "lea 1(%rdi), %eax\nret\n.fill 20, 1, 0x90\n.size module, . - module\nBORINGSSL_bcm_text_end:\n");
extern const unsigned char start[] asm("BORINGSSL_bcm_text_start"), stop[] asm("BORINGSSL_bcm_text_end");
int module(int);
int main(void) {
    unsigned sum = 0;
    for (const volatile unsigned char *p = start; p < stop; p++) sum += *p;
    printf("%d %u\n", module(1), sum);
    return 3;
}
"#;
    place.c("module", source, &[]);
    let alone = alone(&place, "module");
    let run = place.run(&["-o", "profile", "./module"]);
    let said = run.stderr_text();
    assert_eq!((run.code(), run.stdout_text()), (3, alone.stdout_text()), "{said}");
    assert!(said.contains("BoringSSL's FIPS module in it checks its own code: it is only sampled"), "{said}");
    assert_eq!(calls(&place), 0);
    for hooks in ["--hooks=both", "--hooks=entry"] {
        let run = place.run(&["-o", "profile", hooks, "./module"]);
        assert_ne!(run.stdout_text(), alone.stdout_text(), "{hooks}");
    }
}

/// Executed programs are examined in the same way, which `-v` reports.
fn executed_programs_that_sum_up_their_code_are_not_hooked() {
    let place = Place::new();
    place.c("marks", &SUMS.replace("WAYS", WAYS[0].1), &[]);
    place.c(
        "first",
        "#include <unistd.h>\nint main(void) { return execl(\"./marks\", \"marks\", (char *)0); }",
        &[],
    );
    let alone = alone(&place, "first");
    let run = place.run(&["-v", "-o", "profile", "./first"]);
    let said = run.stderr_text();
    assert_eq!((run.code(), run.stdout_text()), (3, alone.stdout_text()), "{said}");
    assert!(said.contains("may check that code: it is only sampled"), "{said}");
}

/// `--list` gives the reason.
fn the_list_says_why() {
    let place = Place::new();
    place.c("marks", &SUMS.replace("WAYS", WAYS[0].1), &[]);
    let list = place.run(&["--list", "./marks"]);
    let (listed, said) = (list.stdout_text(), list.stderr_text());
    let f = listed.lines().find(|line| line.split_whitespace().nth(2) == Some("f")).unwrap();
    assert!(f.contains("refused: own-text"), "{f}");
    assert!(said.contains("may check that code"), "{said}");
    let list = place.run(&["--list", "--hooks=entry", "./marks"]);
    assert!(!list.stdout_text().contains("own-text"), "{}", list.stdout_text());
}
