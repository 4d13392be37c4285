//! Functions that copy parts of the stack, in libraries that the user has left out.
//!
//! `programs/stack-copies.c` and others like it have them in the program, and `attach_static.rs` while hooks come and go.

use gprofinject_tests::place::Place;

use crate::libraries::{same, whole};

gprofinject_tests::trials! {
    together:
        left_out_libraries;
}

/// Coroutines that share a stack, whose code is in a library that is left out, while another one has exit hooks. The function
/// `looping` has one with entry hooks too.
fn left_out_libraries() {
    const SWITCHES: &str = r#"
#include "test.h"
#include "stack-copies.h"
void begin_work(int n) { work(n); BARRIER(); }
void run_with(void (*function)(int)) { worker = function; run_all(__builtin_frame_address(0)); BARRIER(); }
"#;
    const LOOP: &str = r#"
#include "test.h"
ASM_FUNCTION(looping,
    "1: lea 1b(%rip), %rdx\n xorb $1, again(%rip)\n jz 2f\n jmp *%rdx\n 2: push %rax\n call begin_work@plt\n pop %rax\n ret\n"
    ".pushsection .data\n again: .zero 8\n .popsection");
"#;
    const PROGRAM: &str = r"
void looping(int), run_with(void (*)(int));
int main(void) { run_with(looping); return 5; }
";
    let place = Place::new();
    let headers = format!("-I{}/programs", env!("CARGO_MANIFEST_DIR"));
    place.c("libswitches.so", SWITCHES, &["-O1", "-w", "-fPIC", "-shared", &headers]);
    let switches = place.path("libswitches.so");
    let switches = switches.to_str().unwrap();
    place.c("libloop.so", LOOP, &["-fPIC", "-shared", &headers, switches]);
    let libloop = place.path("libloop.so");
    let rpath = "-Wl,-rpath,$ORIGIN";
    place.c("prog", PROGRAM, &["-O1", switches, libloop.to_str().unwrap(), rpath]);
    for hooks in [
        &["--hooks=both"][..],
        &["--hooks=entry"],
        &["--hooks=entry", "--count=blocks"],
        &["--hooks=none", "--count=blocks"],
    ] {
        for libs in [&["--libs=auto"][..], &["--libs=libloop*"], &["-X", "libswitches*!*"]] {
            let options = [&["-q"], hooks, libs].concat();
            same(&place, &options, &[]);
            if hooks[0] == "--hooks=none" {
                continue;
            }
            let calls = whole(&place);
            let loops: u64 = calls.iter().filter(|((_, to), _)| to == "looping").map(|(_, count)| count).sum();
            assert_eq!(loops, 120, "{options:?}: {calls:#?}");
        }
    }
}
