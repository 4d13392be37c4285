//! Programs from compilers with many options, compared with the output of readelf.

use crate::build::{check, compile, compile_if_possible, folder, has, named, options, run, skipped};
use crate::readelf;
use gprofinject_image::{ElfType, FunctionKind, Image};
use gprofinject_plan::{Options, Role};
use std::collections::BTreeSet;
use std::path::Path;

const C: &str = r#"
#include <stdio.h>
#include <stdlib.h>
struct op { const char *name; int (*run)(int); };
static int twice(int x) { return 2 * x; }
static int square(int x) { return x * x; }
static __attribute__((noinline)) int helper(int x) { if (x < 0) { fprintf(stderr, "negative %d\n", x); abort(); } return x + 1; }
int exported(int x) { return helper(x) + 3; }
int alias(int x) __attribute__((alias("exported")));
__attribute__((weak)) int weak_one(int x) { return x; }
__attribute__((noinline)) int recursive(int x) { return x < 2 ? x : recursive(x - 1) + recursive(x - 2); }
int dispatch(int x) { switch (x) { case 0: return 5; case 1: return helper(7); case 2: puts("two"); return 1;
  case 3: return recursive(x); case 4: return 99; case 5: return square(x) ^ 3; default: return -1; } }
static int (*resolve(void))(int) { return twice; }
int chosen(int x) __attribute__((ifunc("resolve")));
static volatile struct op ops[] = { { "twice", twice }, { "square", square } };
int main(int argc, char **argv) {
  int sum = 0;
  for (int i = 0; i < 2; i++) sum += ops[i].run(argc);
  return exported(sum) + weak_one(argc) + recursive(argc) + dispatch(argc) + chosen(argc) == 12345;
}
"#;

const CXX: &str = r#"
#include <stdexcept>
#include <string>
#include <vector>
struct Noisy { std::string s; Noisy(const char *t) : s(t) {} ~Noisy() { if (s.size() == 99) throw 1; } };
__attribute__((noinline)) int risky(int x) { Noisy n("abc"); if (x > 3) throw std::runtime_error("too big"); return x; }
__attribute__((noinline)) int catcher(int x) {
  try { std::vector<int> v(x); return risky(x) + v.size(); } catch (const std::exception &e) { return e.what()[0]; }
}
template <class T> T generic(T x) { return x + 1; }
int main(int argc, char **) { return catcher(argc) + generic(argc) + generic(argc * 2L); }
"#;

/// Reads the program, and compares all facts that readelf also prints.
fn compare(program: &Path) {
    let bytes = std::fs::read(program).unwrap();
    let image = Image::read(&bytes).unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    check(&image);
    let frames = readelf::frames(program);
    let symbols = readelf::functions(program);
    for symbol in &symbols {
        let found = image.functions.binary_search_by_key(&symbol.address, |function| function.address);
        let Ok(index) = found else {
            assert!(symbol.size == 0 && symbol.name.contains(".cold"), "{} is missing", symbol.name);
            continue;
        };
        let function = &image.functions[index];
        let empty_part = symbol.size == 0 && symbol.name.contains(".cold");
        let known = function.name == symbol.name || function.aliases.contains(&symbol.name.as_str());
        assert!(known || empty_part, "{} is not among the names of {function:#x?}", symbol.name);
        if symbol.kind == "IFUNC" {
            assert_eq!(function.kind, FunctionKind::IfuncResolver);
        }
        let next = image.functions.get(index + 1).map_or(u64::MAX, |next| next.address);
        if symbol.size != 0 && function.aliases.is_empty() {
            assert_eq!(function.size, symbol.size.min(next - symbol.address), "{}", symbol.name);
        }
    }
    let addresses: BTreeSet<u64> = symbols.iter().map(|symbol| symbol.address).collect();
    for function in &image.functions {
        let known = addresses.contains(&function.address);
        let described = frames.contains_key(&function.address);
        assert!(known || described || function.frame != Some(true), "from nowhere: {function:#x?}");
        if let Some(&Some(expected)) = frames.get(&function.address) {
            assert_eq!(function.frame, Some(expected), "{}", function.name);
        }
    }
    for addend in readelf::relative_addends(program) {
        let function = image.functions.binary_search_by_key(&addend, |function| function.address);
        assert!(
            function.is_err() || image.details().code_pointers.binary_search(&addend).is_ok(),
            "{addend:#x}"
        );
    }
    let build_id = image.facts.build_id.as_ref();
    let build_id = build_id.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    assert_eq!(build_id, readelf::build_id(program));
    let start = image.functions.iter().find(|function| function.kind == FunctionKind::Start).unwrap();
    assert_eq!(start.address, image.entry);
}

#[test]
fn c_at_many_options() {
    let sets: &[&[&str]] = &[
        &["-O0"],
        &["-O1"],
        &["-O2"],
        &["-O3"],
        &["-Os"],
        &["-O2", "-no-pie", "-fno-pie"],
        &["-O2", "-flto"],
        &["-O2", "-ffunction-sections", "-Wl,--gc-sections"],
        &["-O2", "-fcf-protection=full"],
        &["-O2", "-fno-plt"],
        &["-O2", "-fno-asynchronous-unwind-tables"],
        &["-O2", "-Wl,-z,noseparate-code", "-no-pie", "-fno-pie"],
        &["-O2", "-Wl,-z,pack-relative-relocs"],
        &["-O2", "-static"],
        &["-O2", "-static-pie"],
        &["-O2", "-s"],
        &["-O2", "-Wl,-x"],
        &["-O2", "-Wl,--build-id=none"],
    ];
    for compiler in ["gcc", "clang"] {
        if !has(compiler) {
            continue;
        }
        for (number, flags) in sets.iter().enumerate() {
            let folder = folder(&format!("c-{compiler}-{number}"));
            if let Some(program) = compile_if_possible(&folder, compiler, &[("a.c", C)], flags) {
                compare(&program);
            }
        }
    }
}

#[test]
fn facts_of_a_plain_program() {
    let program = compile(&folder("facts"), "gcc", &[("a.c", C)], &["-O2", "-fPIE", "-pie"]);
    let bytes = std::fs::read(program).unwrap();
    let image = Image::read(&bytes).unwrap();
    assert_eq!(image.elf_type, ElfType::Dyn);
    assert_eq!((image.lo, image.phdr), (0, 64));
    assert_eq!(image.facts.interpreter.as_deref(), Some("/lib64/ld-linux-x86-64.so.2"));
    assert!(image.facts.has_symtab && !image.facts.own_unwinder && !image.facts.go);
    assert_eq!(image.details().landing_pads, []);
    assert_eq!(image.facts.text_relocations, []);
    let exported = named(&image, "exported");
    // Both names are global, so either may be the main one.
    let mut names = vec![exported.name];
    names.extend(&exported.aliases);
    names.sort_unstable();
    assert_eq!((names, exported.frame), (vec!["alias", "exported"], Some(true)));
    for name in ["twice", "square"] {
        assert!(image.details().code_pointers.contains(&named(&image, name).address));
    }
    assert!(!image.details().code_pointers.contains(&exported.address));
}

#[test]
fn pointers_of_a_fixed_program() {
    let flags = ["-O2", "-no-pie", "-fno-pie", "-fno-jump-tables"];
    let program = compile(&folder("pointers"), "gcc", &[("a.c", C)], &flags);
    let bytes = std::fs::read(program).unwrap();
    let image = Image::read(&bytes).unwrap();
    assert_eq!((image.elf_type, image.lo), (ElfType::Exec, 0x400000));
    for name in ["twice", "square"] {
        assert!(image.details().code_pointers.contains(&named(&image, name).address));
    }
    assert!(!image.details().code_pointers.contains(&named(&image, "main").address));
}

#[test]
fn jump_tables_of_a_fixed_program_are_pointers() {
    let program = compile(&folder("tables"), "gcc", &[("a.c", C)], &["-O1", "-no-pie", "-fno-pie"]);
    let bytes = std::fs::read(program).unwrap();
    let image = Image::read(&bytes).unwrap();
    let dispatch = named(&image, "dispatch");
    let inside = dispatch.address + 1..dispatch.address + dispatch.size;
    assert!(image.details().code_pointers.iter().filter(|pointer| inside.contains(pointer)).count() >= 4);
}

#[test]
fn packed_relocations() {
    let folder = folder("relr");
    let assembly = ".section .data.rel,\"aw\"\n.balign 8\n.globl table\ntable:\n.rept 200\n.quad twice\n.quad 5\n\
                    .endr\n.quad square\n";
    let c =
        "int twice(int x) { return 2 * x; } int square(int x) { return x * x; } int main(void) { return 0; }";
    let flags = ["-O1", "-Wl,-z,pack-relative-relocs"];
    let sources = [("a.c", c), ("b.s", assembly)];
    let Some(program) = compile_if_possible(&folder, "gcc", &sources, &flags) else { return };
    if !run("readelf", &["-dW", program.to_str().unwrap()]).contains("(RELR)") {
        return skipped("this linker does not pack relative relocations");
    }
    let bytes = std::fs::read(program).unwrap();
    let image = Image::read(&bytes).unwrap();
    for name in ["twice", "square"] {
        assert!(image.details().code_pointers.contains(&named(&image, name).address), "{name}");
    }
}

#[test]
fn exceptions() {
    for compiler in ["g++", "clang++"] {
        if !has(compiler) {
            continue;
        }
        let sets: &[&[&str]] = &[
            &["-O0"],
            &["-O2"],
            &["-Os"],
            &["-O2", "-no-pie", "-fno-pie"],
            &["-O2", "-static"],
            &["-O2", "-flto"],
        ];
        for (number, flags) in sets.iter().enumerate() {
            let folder = folder(&format!("cxx-{compiler}-{number}"));
            let sources = [("a.cc", CXX)];
            let Some(program) = compile_if_possible(&folder, compiler, &sources, flags) else { continue };
            compare(&program);
            let bytes = std::fs::read(program).unwrap();
            let image = Image::read(&bytes).unwrap();
            assert!(!image.details().landing_pads.is_empty());
            let ours = |name: &str| {
                let hot = named(&image, name);
                let parts = image.functions.iter().filter(|function| match function.kind {
                    FunctionKind::Cold(Some(parent)) => image.functions[parent].address == hot.address,
                    _ => function.address == hot.address,
                });
                let inside = |pad: &u64| parts.clone().any(|part| (part.address..part.limit).contains(pad));
                image.details().landing_pads.iter().filter(|pad| inside(pad)).count()
            };
            // The frame of `catcher` is entered for its exception and to destroy its vector, `risky`'s to
            // destroy its string.
            assert!(ours("_Z7catcheri") >= 1 && ours("_Z5riskyi") >= 1, "{compiler} {flags:?}");
            assert_eq!(ours("main"), 0);
        }
    }
}

/// Compares the landing pads with the call-site tables that g++ wrote. The labels in them are kept through
/// assembler and linker.
#[test]
fn landing_pads_are_the_compilers() {
    if !has("g++") {
        return;
    }
    for (number, flags) in [&["-O0"][..], &["-O2"], &["-O2", "-no-pie", "-fno-pie"]].into_iter().enumerate() {
        let folder = folder(&format!("pads-{number}"));
        let mut all = vec!["-save-temps=obj", "-Wa,--keep-locals", "-Wl,--discard-none"];
        all.extend(flags);
        let program = compile(&folder, "g++", &[("a.cc", CXX)], &all);
        compare(&program);
        let is_assembly =
            |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "s");
        let mut files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let assembly = std::fs::read_to_string(files.find(is_assembly).unwrap()).unwrap();
        // .uleb128 .L26-.LFB1588
        let pads = assembly.lines().filter_map(|line| {
            let (label, _) = line.trim().strip_prefix(".uleb128")?.trim().split_once('-')?;
            label.strip_prefix(".L")?.bytes().all(|byte| byte.is_ascii_digit()).then_some(label)
        });
        let labels = run("nm", &[program.to_str().unwrap()]);
        let address = |label: &str| {
            let line = labels.lines().find(|line| line.ends_with(&format!(" {label}"))).unwrap();
            u64::from_str_radix(&line[..16], 16).unwrap()
        };
        let expected: BTreeSet<u64> = pads.map(address).collect();
        let bytes = std::fs::read(program).unwrap();
        let image = Image::read(&bytes).unwrap();
        assert!(expected.len() > 3);
        assert_eq!(image.details().landing_pads, expected.into_iter().collect::<Vec<u64>>(), "{flags:?}");
        assert!(image.functions.iter().all(|function| !function.name.starts_with(".L")));
    }
}

#[test]
fn rust() {
    if !has("rustc") {
        return;
    }
    let source = "#[inline(never)] fn f(x: usize) -> Box<usize> { if x > 9 { panic!(\"no\") } Box::new(x) }
        fn main() { let n = std::env::args().count(); let r = std::panic::catch_unwind(|| *f(n)); std::process::exit(r.is_err() as i32) }";
    let program = compile(&folder("rust"), "rustc", &[("a.rs", source)], &["-O"]);
    compare(&program);
    let bytes = std::fs::read(program).unwrap();
    let image = Image::read(&bytes).unwrap();
    assert!(!image.details().landing_pads.is_empty() && !image.facts.go && image.functions.len() > 100);
}

#[test]
fn without_section_headers() {
    let sets = [&["-O2"][..], &["-O2", "-no-pie", "-fno-pie"], &["-O2", "-static"], &["-O2", "-static-pie"]];
    for (number, flags) in sets.into_iter().enumerate() {
        let folder = folder(&format!("sstrip-{number}"));
        let sources = [("a.c", C)];
        let Some(program) = compile_if_possible(&folder, "gcc", &sources, flags) else { continue };
        // The linker leaves out .eh_frame_hdr in some static programs. Without section headers, no frame
        // descriptions can be found in these.
        let has_table = run("readelf", &["-lW", program.to_str().unwrap()]).contains("GNU_EH_FRAME");
        assert!(has_table || flags.contains(&"-static"), "{flags:?}");
        run("strip", &[program.to_str().unwrap()]);
        let stripped = std::fs::read(program).unwrap();
        let mut bytes = stripped.clone();
        bytes[40..48].fill(0); // e_shoff
        bytes[58..64].fill(0); // e_shentsize, e_shnum, e_shstrndx
        let (with, without) = (Image::read(&stripped).unwrap(), Image::read(&bytes).unwrap());
        check(&without);
        assert_eq!(without.functions.iter().any(|function| function.frame.is_some()), has_table, "{flags:?}");
        if !has_table {
            continue;
        }
        assert!(!with.facts.has_symtab && !without.facts.has_symtab);
        assert_eq!(with.facts.build_id, without.facts.build_id);
        for function in &with.functions {
            let found = without.functions.iter().any(|other| other.address == function.address);
            assert!(found || function.frame.is_none(), "{function:#x?}");
        }
        let real = |image: &Image<'_>| {
            image.functions.iter().filter(|function| function.frame == Some(true)).count()
        };
        assert_eq!(real(&with), real(&without), "{flags:?}");
    }
}

#[test]
fn text_relocations() {
    let assembly =
        ".text\n.globl main\n.type main,@function\nmain:\nmovabs $main, %rax\nxor %eax,%eax\nret\n";
    let folder = folder("textrel");
    let program = compile(&folder, "gcc", &[("a.s", assembly)], &["-pie", "-Wl,-z,notext"]);
    let bytes = std::fs::read(program).unwrap();
    let image = Image::read(&bytes).unwrap();
    let main = named(&image, "main").address;
    assert_eq!(image.facts.text_relocations, [main + 2]);
    assert!(image.details().code_pointers.contains(&main));
}

/// Reads programs that were not built for this test: the test program itself, and those whose paths are in
/// `IMAGE_PROGRAMS`, separated by colons.
#[test]
fn installed_programs() {
    let named = std::env::var("IMAGE_PROGRAMS").unwrap_or_default();
    let named = named.split(':').filter(|name| !name.is_empty()).map(std::path::PathBuf::from);
    for program in named.chain([std::env::current_exe().unwrap()]) {
        compare(&program);
    }
}

/// .NET's runtime is not hooked at all, wherever it is: in a library, in a program that contains it, and beside methods that were compiled ahead
/// of time.
#[test]
fn the_runtime_of_net_is_known() {
    let exported = |name| format!("int {name}(void) {{ return 1; }} int main(void) {{ return {name}(); }}");
    let in_section = "__attribute__((section(\"__managedcode\"))) int method(void) { return 1; } int main(void) { return method(); }";
    for (source, is_net) in [
        (exported("coreclr_initialize"), true),
        (exported("MetaDataGetDispenser"), true),
        (in_section.to_owned(), true),
        (exported("coreclr"), false),
    ] {
        let program = compile(&folder("net"), "gcc", &[("a.c", &source)], &["-O1", "-s", "-rdynamic"]);
        let bytes = std::fs::read(program).unwrap();
        let image = Image::read(&bytes).unwrap();
        assert_eq!(image.facts.runtime.as_deref(), is_net.then_some(gprofinject_image::NET), "{source}");
    }
}

#[test]
fn runtimes_that_rely_on_return_addresses_are_known_by_their_functions() {
    let names = [
        ("caml_garbage_collection", Some("OCaml")),
        ("scheduleWaitThread", Some("GHC")),
        ("SYSTEM_$$_GET_CALLER_FRAME", Some("Free Pascal")),
        ("_ZN2v88internal18StackFrameIterator7AdvanceEv", Some("V8")),
        ("_ZN2v88internal6FooEv", None),
    ];
    for (name, runtime) in names {
        let source =
            format!("void {name}(void) {{ __asm__(\"\"); }} int main(void) {{ {name}(); return 0; }}");
        let program = compile(&folder("runtime"), "gcc", &[("a.c", &source)], &["-O1"]);
        let bytes = std::fs::read(program).unwrap();
        let image = Image::read(&bytes).unwrap();
        assert_eq!(image.facts.runtime.as_deref(), runtime, "{name}");
        let hooks = gprofinject_plan::Hooks::Both;
        let options = Options { hooks, ..options(Role::Program) };
        let plan = gprofinject_plan::Plan::new(&image, &options);
        let expected =
            if runtime.is_some() { gprofinject_plan::Hooks::Entry } else { gprofinject_plan::Hooks::Both };
        assert_eq!((plan.hooks, plan.downgrade.is_some()), (expected, runtime.is_some()), "{name}");
    }
}
