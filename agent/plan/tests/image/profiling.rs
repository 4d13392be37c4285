//! Programs built for profiling: the instructions that are removed are those that objdump shows as calls of
//! counting functions.

use crate::build::{compile, folder, has, run, try_compile};
use gprofinject_image::Image;
use gprofinject_plan::Flow;
use std::collections::BTreeSet;
use std::path::Path;

/// A program with loops, switches, tail calls, small and large frames, and exceptions, so that it has many
/// forms of prologues and epilogues.
const SOURCE: &str = r#"
#include <cstdlib>
#include <stdexcept>
#define OPAQUE __attribute__((noinline))
int x;
OPAQUE void empty() { asm volatile(""); }
OPAQUE int leaf(int a) { return a + x; }
OPAQUE int tail(int a) { return leaf(a + 1); }
OPAQUE void tail_void(int a) { if (a > 3) empty(); else std::abort(); }
static inline int inlined(int a) { return a * leaf(a); }
OPAQUE int many(int a, int b, int c, int d, int e, int f, int g, int h) {
    return leaf(a + b + c + d + e + f + g + h) + inlined(g) + leaf(inlined(h));
}
OPAQUE int chosen(int a) {
    switch (a) {
    case 0: return leaf(1);
    case 1: leaf(2); return leaf(5);
    case 2: return many(1, 2, 3, 4, 5, 6, 7, a);
    case 3: empty(); break;
    case 4: return leaf(7) + leaf(10);
    case 5: tail_void(a); break;
    case 6: if (x) return empty(), a; return a > x ? inlined(a) : leaf(inlined(x));
    }
    return leaf(a * a);
}
OPAQUE int thrown(int a) {
    if (a > 1) throw std::runtime_error("a");
    return a;
}
OPAQUE int caught(int a) {
    try { return thrown(a); } catch (std::exception &) { return leaf(a); }
}
OPAQUE const void *caller() { return __builtin_return_address(0); }
int main(int c, char **) {
    int sum = 0;
    for (int i = 0; i < 4; i++) sum += chosen(i) + caught(i) + tail(i) + (caller() != nullptr);
    return sum == c;
}
"#;

/// Returns the addresses of the calls and jumps that, according to objdump, lead to one of these functions.
fn calls(program: &Path, names: &[&str]) -> BTreeSet<u64> {
    let listing = run("objdump", &["-d", "--no-show-raw-insn", &program.display().to_string()]);
    let mut found = BTreeSet::new();
    for line in listing.lines() {
        let Some((address, code)) = line.trim().split_once(":\t") else { continue };
        let code = code.trim_start_matches("bnd ");
        let branch = code.starts_with("call") || code.starts_with("jmp");
        let leads = |name: &&str| code.contains(&format!("<{name}@"));
        // The stubs of the PLT also jump there. Their lines end with the name and its symbol version.
        let stub = code.starts_with("jmp") && code.contains("GLIBC") && !code.contains("@plt");
        if branch && names.iter().any(leads) && !(stub && in_plt(&listing, line)) {
            found.insert(u64::from_str_radix(address, 16).unwrap());
        }
    }
    found
}

/// Returns whether a line of the listing is in a section of PLT stubs.
fn in_plt(listing: &str, line: &str) -> bool {
    let at = line.as_ptr() as usize - listing.as_ptr() as usize;
    let section = listing[..at].rfind("Disassembly of section ").unwrap_or(0);
    listing[section..].starts_with("Disassembly of section .plt")
}

const COUNTERS: [&str; 3] = ["mcount", "_mcount", "__fentry__"];
const HOOKS: [&str; 2] = ["__cyg_profile_func_enter", "__cyg_profile_func_exit"];

#[test]
fn all_calls_are_taken_out() {
    let mut compilers = vec!["g++"];
    compilers.extend(has("clang++").then_some("clang++"));
    let mut ways = 0;
    for compiler in compilers {
        for flags in [
            &["-O0", "-pg", "-no-pie", "-fno-pie"][..],
            &["-O2", "-pg"],
            &["-O2", "-pg", "-fno-plt", "-fcf-protection", "-Wl,-z,now"],
            &["-O3", "-pg", "-mfentry"],
            &["-Os", "-pg", "-mfentry", "-no-pie", "-fno-pie", "-fcf-protection"],
            &["-O0", "-finstrument-functions"],
            &["-O1", "-finstrument-functions", "-fno-plt"],
            &["-O2", "-finstrument-functions", "-no-pie", "-fno-pie"],
            &["-O2", "-finstrument-functions", "-fno-asynchronous-unwind-tables", "-fno-omit-frame-pointer"],
            &["-O2", "-finstrument-functions", "-pg"],
        ] {
            let folder = folder("profiling");
            let program = compile(&folder, compiler, &[("source.cc", SOURCE)], flags);
            let bytes = std::fs::read(&program).unwrap();
            let what = format!("{compiler} {flags:?}");
            let counters = calls(&program, &COUNTERS);
            let hooks = calls(&program, &HOOKS);
            assert!(counters.len() + hooks.len() >= 10, "{what}: {} calls", counters.len() + hooks.len());

            let mut without_hooks = Image::read(&bytes).unwrap();
            without_hooks.remove_profiling(false);
            let removed: BTreeSet<u64> = without_hooks.removed.iter().map(|r| r.address).collect();
            assert_eq!(removed, counters, "{what}: counters");
            assert!(!without_hooks.facts.hooks_removed);

            let mut image = Image::read(&bytes).unwrap();
            image.remove_profiling(true);
            let removed: BTreeSet<u64> = image.removed.iter().map(|r| r.address).collect();
            let all: BTreeSet<u64> = &counters | &hooks;
            assert!(removed.is_superset(&all), "{what}: {:x?} stay", &all - &removed);
            assert_eq!(image.facts.hooks_removed, !hooks.is_empty(), "{what}");
            // In addition to the calls, the code that only prepares their arguments is removed, and nothing
            // is removed twice.
            let arguments = image.removed.len() - all.len();
            assert!(image.removed.windows(2).all(|two| two[0].end() <= two[1].address), "{what}: overlap");
            assert!(hooks.is_empty() == (arguments == 0), "{what}: {arguments} for {} hooks", hooks.len());
            // Only `caller` reads its return address. Clang sometimes keeps that address on the stack.
            let flow = Flow::of(&image, true);
            let odd = image.functions.iter().zip(&flow.functions).filter(|(_, flow)| flow.odd_return);
            let odd: Vec<&str> = odd.map(|(f, _)| f.name).collect();
            assert!(odd == ["_Z6callerv"] || compiler != "g++", "{what}: {odd:?}");
            for r in &image.removed {
                let len = r.end() - r.address;
                assert_ne!(image.code_at(r.address, len), image.data_at(r.address, len), "{what}");
            }
            ways += 1;
        }
    }
    assert!(ways >= 10);
}

/// If the program itself or another library defines a function with such a name, its calls stay.
#[test]
fn other_peoples_functions_stay() {
    let own = "void __cyg_profile_func_enter(void *f, void *c) __attribute__((no_instrument_function));
        void __cyg_profile_func_exit(void *f, void *c) __attribute__((no_instrument_function));
        int n;
        void __cyg_profile_func_enter(void *f, void *c) { n++; }
        void __cyg_profile_func_exit(void *f, void *c) { n--; }";
    let main = "int main(void) { return 0; }";
    let folder = folder("profiling-own");
    let check = |flags: &[&str], sources: &[(&str, &str)]| {
        let program = compile(&folder, "gcc", sources, flags);
        let bytes = std::fs::read(program).unwrap();
        let mut image = Image::read(&bytes).unwrap();
        image.remove_profiling(true);
        assert!(image.removed.is_empty(), "{flags:?}: {:x?}", image.removed);
        assert!(!image.facts.hooks_removed);
    };
    check(&["-O1", "-finstrument-functions"], &[("own.c", own), ("main.c", main)]);
    check(&["-O1"], &[("main.c", main)]);
    let library = folder.join("libown.so");
    let made = try_compile(&folder, "gcc", &[("own.c", own)], &["-shared", "-fPIC"]);
    std::fs::rename(made.unwrap(), &library).unwrap();
    let path = library.display().to_string();
    check(&["-O1", "-finstrument-functions", &path], &[("main.c", main)]);
}
