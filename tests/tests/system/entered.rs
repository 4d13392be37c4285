//! Programs that are entered at other places than the starts of functions, by the kernel, the dynamic linker and dlsym, so that
//! no code and no symbol leads there.

use std::fs;
use std::path::Path;
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::elf::Program;
use gprofinject_tests::gprofdata;
use gprofinject_tests::place::{Place, finish};

use crate::libraries::same;

gprofinject_tests::trials! {
    together:
        the_entry_point_within_a_function,
        initialisers_within_functions,
        initialisers_within_functions_of_libraries;
}

/// Returns how often the function of this name was called.
fn calls(place: &Place, program: &Program, name: &str) -> u64 {
    let profile = gprofdata::read(&place.path("gmon.out")).unwrap();
    let address = program.named(name).unwrap().address;
    profile.arcs.iter().filter(|((_, to), _)| *to == address).map(|(_, count)| count).sum()
}

/// The kernel begins after the function's fourth byte. The function can be hooked only if there is padding after it, in which its jump
/// has room.
fn the_entry_point_within_a_function() {
    const CODE: &str = r"
.globl f
.type f, @function
.text
f:      lea 1(%rdi), %eax
        ret
        mov $10, %ebx
        xor %edi, %edi
1:      call f
        mov %eax, %edi
        sub $1, %ebx
        jne 1b
        mov $60, %eax
        syscall
        ud2
.size f, . - f
";
    let place = Place::new();
    // At fixed addresses, and position-independent, where the linker itself leaves padding.
    for (kind, bare) in [(&["-static", "-no-pie"][..], 0), (&["-static-pie"], 10)] {
        for (padding, calls_of_f) in [("", bare), (".p2align 6\n", 10)] {
            fs::write(place.path("code.s"), format!("{CODE}{padding}")).unwrap();
            let mut compiler = Command::new("gcc");
            compiler.args(["-nostdlib", "-Wl,--build-id=none", "-Wl,-Ttext=0x401000", "-Wl,-e,0x401004", "-o"]);
            compiler.arg(place.path("prog")).arg(place.path("code.s")).args(kind);
            gprofinject_tests::compile::compile(compiler).unwrap();
            let program = Program::read(&place.path("prog")).unwrap();
            for options in [&["--hooks", "both"][..], &["--hooks", "entry"], &["--times"], &["--count", "blocks"], &["--times", "--count", "blocks"]] {
                let outcome = same(&place, options, &[]);
                let counted = calls(&place, &program, "f");
                assert_eq!((outcome.code(), counted), (10, calls_of_f), "{kind:?} {options:?} {padding}");
            }
        }
    }
}

/// Functions of four bytes, each with a second entry after them. The second entries count themselves.
const SPLIT: &str = r#"
__asm__(".macro SPLIT name, second\n"
        ".globl \\name, \\name\\()_in\n"
        ".type \\name, @function\n"
        "\\name: .cfi_startproc\n"
        "lea 1(%rdi), %eax\n"
        "ret\n"
        "\\name\\()_in: \\second\n"
        "incl entered(%rip)\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size \\name, . - \\name\n"
        ".endm\n"
        ".text\n"
        "SPLIT init\nSPLIT fini\nSPLIT array\nSPLIT finis\nSPLIT found\n"
        "SPLIT chosen, \"lea finis(%rip), %rax\"\n"
        ".section .init_array, \"aw\"\n.quad array_in\n"
        ".section .fini_array, \"aw\"\n.quad finis_in\n"
        ".text\n"
        ".globl pick\n.type pick, @gnu_indirect_function\n.set pick, chosen_in\n");
__attribute__((visibility("hidden"))) int entered;
int init(int), fini(int), array(int), finis(int), chosen(int), found(int), pick(int);
#define CALLED(i) (init(i) + fini(i) + array(i) + finis(i) + chosen(i) + found(i) + pick(i))
"#;

/// The names of the second entries, which are taken out of the symbol table.
const SECOND: [&str; 7] = ["init_in", "fini_in", "array_in", "finis_in", "chosen_in", "found_in", "pick"];

/// How often each function is called.
const CALLS: [(&str, u64); 6] =
    [("init", 10), ("fini", 10), ("array", 10), ("finis", 20), ("chosen", 10), ("found", 10)];

const INITIALISERS: [&str; 2] = ["-Wl,-init=init_in", "-Wl,-fini=fini_in"];

fn without_second_names(file: &Path) {
    let mut strip = Command::new("strip");
    strip.args(SECOND.iter().flat_map(|name| ["-N", name])).arg(file);
    assert!(finish(strip).status.success());
}

/// DT_INIT, DT_FINI, arrays, an IFUNC resolver and an address for dlsym.
fn initialisers_within_functions() {
    const MAIN: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    int x = 0;
    for (int i = 0; i < 10; i++) x += CALLED(i);
    void (*in)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "found_in");
    if (in) in();
    printf("%d %d\n", x, entered);
    return 5;
}
"#;
    let place = Place::new();
    let builds: [(&str, &[&str]); 6] = [
        ("gcc", &["-rdynamic", "-ldl", "-no-pie", "-fno-pie"]),
        ("gcc", &["-rdynamic", "-ldl", "-pie", "-fPIE"]),
        ("gcc", &["-static", "-no-pie"]),
        ("gcc", &["-static-pie", "-fPIE"]),
        ("musl-gcc", &["-rdynamic", "-no-pie", "-fno-pie", "-DMUSL"]),
        ("musl-gcc", &["-static", "-DMUSL"]),
    ];
    for (compiler, flags) in builds {
        if compiler == "musl-gcc" && !skip::have(compiler) {
            skip::skipped("entered::initialisers_within_functions", "no musl-gcc");
            continue;
        }
        let mut source = SPLIT.to_owned() + MAIN;
        if compiler == "musl-gcc" {
            // musl has no IFUNCs.
            source = source.replace(", @gnu_indirect_function", ", @function").replace("+ pick(i)", "+ finis(i)");
        }
        place.compile(compiler, "prog", &source, &[flags, &INITIALISERS].concat()).unwrap();
        without_second_names(&place.path("prog"));
        let program = Program::read(&place.path("prog")).unwrap();
        for options in [&["--hooks", "both"][..], &["--hooks", "entry"], &["--times", "--libs", "all"]] {
            let outcome = same(&place, options, &[]);
            for (name, count) in CALLS {
                let calls = calls(&place, &program, name);
                // A function that is not hooked has no calls.
                assert!([0, count].contains(&calls), "{flags:?} {options:?}: {name} {calls}: {}", outcome.stderr_text());
            }
        }
    }
}

fn initialisers_within_functions_of_libraries() {
    const USER: &str = "#include <stdio.h>\nint all(int);\nint main(void) { int x = 0;\n\
        for (int i = 0; i < 10; i++) x += all(i); printf(\"%d\\n\", x); return 5; }\n";
    let place = Place::new();
    let source = SPLIT.to_owned() + "int all(int i) { return CALLED(i) + 100 * entered; }\n";
    let flags = ["-shared", "-fPIC", "-Wl,-Bsymbolic", INITIALISERS[0], INITIALISERS[1]];
    let library = place.c("libsplit.so", &source, &flags);
    place.c("prog", USER, &[library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    without_second_names(&library);
    for options in [&["-q"][..], &["-q", "--hooks", "entry"], &["-q", "--times", "--libs", "all"]] {
        same(&place, options, &[]);
    }
}
