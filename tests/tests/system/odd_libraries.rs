//! Libraries whose files are unusual or damaged: each one that cannot be planned costs only itself.
//!
//! The dynamic linker reads the program headers and the dynamic section of a library, gprofinject its sections too, so a file
//! can be sound for one and damaged for the other.

use std::fs;

use gprofinject_tests::place::Place;
use object::read::elf::{FileHeader, SectionHeader};
use object::{LittleEndian, elf};

use crate::libraries::{has, whole};

gprofinject_tests::trials! {
    together:
        without_files_or_with_others,
        first_addresses_other_than_zero,
        damaged_files;
}

const LIBRARY: &str = r"
static int sum;
__attribute__((noinline)) static int LEAF(int x) { return sum += x; }
int work(int x) { int s = 0; for (int i = 0; i < TIMES; i++) s += LEAF(x + i); return s; }
";
/// Loads the libraries that its arguments name and calls `work` in each as often as the first one says. `memfd:FILE` is
/// loaded from a copy in memory, `deleted:FILE` is removed when it is loaded, and `FILE=OTHER` replaces one file by another.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static void call(const char *path, const char *remove) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) { puts(dlerror()); exit(9); }
    if (remove) unlink(remove);
    int (*work)(int) = (int (*)(int))dlsym(library, "work");
    long sum = 0;
    for (int i = 0; i < 10; i++) sum += work(i);
    printf("%ld\n", sum);
    dlclose(library);
}
int main(int argc, char **argv) {
    static char bytes[1 << 20], path[64];
    for (int i = 1; i < argc; i++) {
        char *other = strchr(argv[i], '=');
        if (!strncmp(argv[i], "memfd:", 6)) {
            FILE *file = fopen(argv[i] + 6, "rb");
            size_t len = fread(bytes, 1, sizeof bytes, file);
            int fd = memfd_create("library", 0);
            if (write(fd, bytes, len) != (ssize_t)len) return 8;
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            call(path, NULL);
        } else if (!strncmp(argv[i], "deleted:", 8)) {
            call(argv[i] + 8, argv[i] + 8);
        } else if (other) {
            *other = 0;
            if (rename(other + 1, argv[i])) return 7;
        } else {
            call(argv[i], NULL);
        }
    }
    return 0;
}
"#;

/// Builds the program, and libraries whose functions `leafN` are called N times by each call of `work`.
fn built(leaves: &[u32]) -> Place {
    let place = Place::new();
    place.c("prog", PROGRAM, &["-g", "-O2"]);
    for n in leaves {
        let (leaf, times) = (format!("-DLEAF=leaf{n}"), format!("-DTIMES={n}"));
        place.c(&format!("{n}.so"), LIBRARY, &["-g", "-O1", "-fPIC", "-shared", &leaf, &times]);
    }
    place
}

/// Runs the program, which must do what it does alone. Returns what gprofinject has said.
fn run(place: &Place, hooks: &str, args: &[&str]) -> String {
    let outcome = place.run(&[&[hooks, "-v", "./prog"], args].concat());
    let said = outcome.stderr_text();
    assert_eq!(outcome.code(), 0, "{args:?}: {said}{}", outcome.stdout_text());
    said
}

fn without_files_or_with_others() {
    for hooks in ["--hooks=both", "--hooks=entry"] {
        let place = built(&[2, 3, 4, 5]);
        let args = ["memfd:2.so", "./4.so", "./4.so=./5.so", "./4.so", "./4.so", "deleted:./3.so"];
        let said = run(&place, hooks, &args);
        let calls = [("work", "leaf2", 20), ("work", "leaf3", 30), ("work", "leaf4", 40), ("work", "leaf5", 100)];
        has(&whole(&place), &calls, &format!("{hooks}: {said}"));
    }
}

/// Where a section of a library with this name is in the file, and where its header is.
fn section(bytes: &[u8], name: &str) -> (usize, usize, usize) {
    type Header = elf::FileHeader64<LittleEndian>;
    let header = Header::parse(bytes).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, bytes).unwrap();
    let (index, found) = sections.section_by_name(endian, name.as_bytes()).unwrap();
    let (offset, size) = found.file_range(endian).unwrap();
    let at = header.e_shoff(endian) as usize + index.0 * usize::from(header.e_shentsize(endian));
    (offset as usize, size as usize, at)
}

fn damaged_files() {
    /// The offset of sh_size in struct Elf64_Shdr.
    const SIZE: usize = 32;
    let place = built(&[2, 3, 4, 5, 6, 7]);
    let damage = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let path = place.path(name);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
    };
    // No section headers at all; unwind tables of garbage; a symbol table that is longer than the file.
    damage("3.so", &|bytes| {
        bytes[0x28..0x30].fill(0);
        bytes[0x3c..0x40].fill(0);
    });
    damage("4.so", &|bytes| {
        let (offset, size, _) = section(bytes, ".eh_frame");
        bytes[offset..offset + size].fill(0xa5);
    });
    damage("5.so", &|bytes| {
        for name in [".symtab", ".dynsym"] {
            let (_, _, header) = section(bytes, name);
            bytes[header + SIZE..header + SIZE + 8].copy_from_slice(&(1_u64 << 60).to_le_bytes());
        }
    });
    // Section headers beyond the end.
    damage("6.so", &|bytes| bytes[0x28..0x30].copy_from_slice(&(1_u64 << 40).to_le_bytes()));
    // Cut off after what the dynamic linker maps.
    damage("7.so", &|bytes| {
        let (offset, ..) = section(bytes, ".comment");
        bytes.truncate(offset);
    });
    // Without unwind tables: with the names of all functions, and with those of the exported ones.
    let without = ["-O1", "-fPIC", "-shared", "-fno-asynchronous-unwind-tables", "-nostartfiles"];
    place.c("8.so", LIBRARY, &[&without[..], &["-DLEAF=leaf8", "-DTIMES=8"]].concat());
    place.c("9.so", LIBRARY, &[&without[..], &["-DLEAF=leaf9", "-DTIMES=9", "-s"]].concat());
    // All are hooked, the first of them twice, because nothing that is damaged is needed; `work` is exported by each.
    for hooks in ["--hooks=both", "--hooks=entry"] {
        let libraries = ["./2.so", "./3.so", "./4.so", "./5.so", "./6.so", "./7.so", "./8.so", "./9.so", "./2.so"];
        let said = run(&place, hooks, &libraries);
        let calls = [("work", "leaf2", 40), ("work", "leaf4", 40), ("work", "leaf8", 80), ("call", "work", 90)];
        has(&whole(&place), &calls, &format!("{hooks}: {said}"));
        assert!(said.contains("functions of 8 libraries") && !said.contains("refused"), "{said}");
    }
}

/// A library that is linked for another first address than 0 has its headers there, and not at its load address. gprofinject says
/// that it is not hooked. Two of them cannot both be at that address.
fn first_addresses_other_than_zero() {
    let place = built(&[2]);
    let shared = ["-g", "-O2", "-fPIC", "-shared", "-Wl,-Ttext-segment=0x400000"];
    let odd = |name: &str| place.c(name, LIBRARY, &[&["-DLEAF=leaf7", "-DTIMES=7"], &shared[..]].concat());
    let odd = [odd("libodd1.so"), odd("libodd2.so")];
    let odd = odd.each_ref().map(|path| path.to_str().unwrap());
    // The agent meets them before it knows the C library.
    place.c("prog", PROGRAM, &[&["-g", "-O2", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN"], &odd[..]].concat());
    for hooks in ["--hooks=both", "--hooks=entry"] {
        let said = run(&place, hooks, &["./2.so", "./libodd1.so"]);
        for name in ["libodd1.so", "libodd2.so"] {
            let what = format!("{name} is not hooked: it is linked for another first address than 0");
            assert!(said.contains(&what), "{said}");
        }
        has(&whole(&place), &[("main", "call", 2), ("work", "leaf2", 20)], &said);
    }
}
