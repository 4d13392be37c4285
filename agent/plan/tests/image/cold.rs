//! Cold parts that gcc or clang makes, or that are written by hand.

use crate::build::{check, compile, compile_if_possible, folder, has, named, skipped};
use gprofinject_image::{FunctionKind, Image};

/// Returns the source of a function with a part that gcc makes a cold part. Two files have one, under the
/// same local name.
fn unlikely(public: &str) -> String {
    format!(
        r#"
        #include <stdio.h>
        #include <stdlib.h>
        extern __attribute__((cold,noreturn)) void fail(const char *, long, long);
        extern void use(void *);
        static __attribute__((noinline)) long same(long a, long b) {{
            char room[64]; use(room);
            if (__builtin_expect(a > b, 0)) {{ fail("{public}", a, b); }}
            return a * b + room[3];
        }}
        long {public}(long a) {{
            char room[32]; use(room);
            if (a == 7) {{ fail("seven", a, a); }}
            return same(a, a + 1) + room[5];
        }}"#
    )
}

const MAIN: &str = r#"
    #include <stdlib.h>
    __attribute__((cold,noreturn,noinline)) void fail(const char *s, long a, long b) { abort(); }
    __attribute__((noinline)) void use(void *p) { __asm__ volatile("" :: "r"(p) : "memory"); }
    long one(long), two(long);
    int main(int argc, char **argv) { return one(argc) + two(argc); }"#;

#[test]
fn gcc_parts_find_their_function_among_equal_names() {
    for (number, flags) in [&["-O2"][..], &["-O3", "-no-pie", "-fno-pie"]].into_iter().enumerate() {
        let folder = folder(&format!("cold-gcc-{number}"));
        let (one, two) = (unlikely("one"), unlikely("two"));
        let sources = [("one.c", one.as_str()), ("two.c", &two), ("main.c", MAIN)];
        let mut all = vec!["-freorder-blocks-and-partition"];
        all.extend(flags);
        let bytes = std::fs::read(compile(&folder, "gcc", &sources, &all)).unwrap();
        let image = Image::read(&bytes).unwrap();
        check(&image);
        let parts: Vec<_> = image.functions.iter().filter(|f| f.name.ends_with(".cold")).collect();
        assert!(parts.len() >= 4, "{parts:#x?}");
        let mut parents = Vec::new();
        for part in parts {
            let FunctionKind::Cold(Some(parent)) = part.kind else { panic!("{part:#x?}") };
            let parent = &image.functions[parent];
            assert_eq!(part.name.strip_suffix(".cold"), Some(parent.name));
            // The parent jumps to its cold part: its code contains a `jcc rel32` with that target.
            let code = image.code_at(parent.address, parent.size).unwrap();
            let jumps = (0..code.len().saturating_sub(5)).any(|at| {
                let rel = i32::from_le_bytes(code[at + 2..at + 6].try_into().unwrap());
                let next = parent.address + at as u64 + 6;
                code[at] == 0x0f
                    && code[at + 1] & 0xf0 == 0x80
                    && next.wrapping_add_signed(rel.into()) == part.address
            });
            assert!(jumps, "{} at {:#x} is not of {:#x?}", part.name, part.address, parent);
            parents.push(parent.address);
        }
        parents.sort_unstable();
        parents.dedup();
        assert!(parents.len() >= 4, "parts of one function at most: {parents:#x?}");
    }
}

#[test]
fn clang_outlines_real_functions() {
    if !has("clang") {
        return;
    }
    let folder = folder("cold-clang");
    let one = unlikely("one");
    let two = unlikely("two");
    let sources = [("one.c", one.as_str()), ("two.c", &two), ("main.c", MAIN)];
    let flags = ["-O2", "-mllvm", "-hot-cold-split=true", "-mllvm", "-hotcoldsplit-threshold=0"];
    let Some(program) = compile_if_possible(&folder, "clang", &sources, &flags) else { return };
    let bytes = std::fs::read(program).unwrap();
    let image = Image::read(&bytes).unwrap();
    check(&image);
    let outlined: Vec<_> = image.functions.iter().filter(|f| f.name.contains(".cold.")).collect();
    if outlined.is_empty() {
        return skipped("this clang has outlined nothing");
    }
    for function in outlined {
        assert_eq!((function.kind, function.frame), (FunctionKind::Ordinary, Some(true)), "{function:#x?}");
    }
}

/// Assembles a program from one file. `maker` becomes the content of the section .comment.
fn assembled(test: &str, maker: &str, text: &str) -> Vec<u8> {
    let assembly = format!(
        ".section .comment,\"MS\",@progbits,1\n.string \"{maker}\"\n.text\n.globl _start\n.type _start,@function\n\
         _start: .cfi_startproc\nxor %eax,%eax\nsyscall\n.cfi_endproc\n.size _start,.-_start\n{text}"
    );
    let flags = ["-nostdlib", "-static", "-no-pie"];
    std::fs::read(compile(&folder(test), "gcc", &[("a.s", &assembly)], &flags)).unwrap()
}

/// Returns the assembly of a function with a frame description, in which the CFA at the start is `cfa` bytes
/// above rsp.
fn described(name: &str, cfa: u32) -> String {
    format!(
        ".type {name},@function\n{name}: .cfi_startproc\n.cfi_def_cfa_offset {cfa}\nnop\nnop\nret\n.cfi_endproc\n\
         .size {name},.-{name}\n"
    )
}

const GCC: &str = "GCC: (Debian 8.3.0-6) 8.3.0";
const CLANG: &str = "Debian clang version 14.0.6";

#[test]
fn numbered_parts() {
    let text = ["f", "g.part.0"].map(|name| described(name, 8)).concat()
        + &described("f.cold.0", 8)
        + &described("g.part.0.cold.12", 64);
    let kinds = |maker, test| {
        let bytes = assembled(test, maker, &text);
        let image = Image::read(&bytes).unwrap();
        check(&image);
        let parent = |name: &str| match named(&image, name).kind {
            FunctionKind::Cold(parent) => parent.map(|parent| image.functions[parent].name.to_owned()),
            kind => Some(format!("{kind:?}")),
        };
        ["f.cold.0", "g.part.0.cold.12"].map(parent)
    };
    let [f, g] = ["f", "g.part.0"].map(|name| Some(name.to_owned()));
    assert_eq!(kinds(GCC, "cold-numbered-gcc"), [f, g.clone()]);
    // A function that clang has outlined begins like any function. Code that begins inside a frame cannot be
    // called, so it is a cold part of either compiler.
    assert_eq!(kinds(CLANG, "cold-numbered-clang"), [Some("Ordinary".to_owned()), g]);
}

#[test]
fn a_part_of_a_leaf_has_a_functions_frame() {
    for (maker, test) in [(GCC, "cold-leaf-gcc"), (CLANG, "cold-leaf-clang")] {
        let bytes = assembled(test, maker, &(described("leaf", 8) + &described("leaf.cold", 8)));
        let image = Image::read(&bytes).unwrap();
        let FunctionKind::Cold(Some(parent)) = named(&image, "leaf.cold").kind else { panic!("{maker}") };
        assert_eq!(image.functions[parent].name, "leaf");
    }
}

#[test]
fn an_empty_part_is_nothing() {
    let empty = ".type f.cold,@function\nf.cold:\n.size f.cold,0\n";
    let text = described("f", 8) + empty + &described("next", 8);
    let bytes = assembled("cold-empty", GCC, &text);
    let image = Image::read(&bytes).unwrap();
    let next = named(&image, "next");
    assert_eq!((next.kind, next.aliases.as_slice()), (FunctionKind::Ordinary, &[][..]));
    assert!(image.functions.iter().all(|function| !function.name.contains("cold")));
}

#[test]
fn a_nameless_frame_that_has_begun_is_cold() {
    let text = described("f", 8) + ".cfi_startproc\n.cfi_def_cfa_offset 48\nnop\nret\n.cfi_endproc\n";
    let bytes = assembled("cold-nameless", GCC, &text);
    let image = Image::read(&bytes).unwrap();
    let last = image.functions.last().unwrap();
    assert_eq!((last.name, last.kind, last.frame), ("", FunctionKind::Cold(None), Some(false)));
}
