//! Cold parts of stripped programs: the parents that jumps show are those that the names have shown.

use crate::build::{check, compile, folder, has, run, skipped};
use gprofinject_image::{FunctionKind, Image};

/// A function with several parts: one that a table of jumps leads to as well, and one that only another part jumps to.
const SOURCE: &str = r#"
    #include <stdio.h>
    #include <stdlib.h>
    __attribute__((cold,noinline)) int rare(int x) { return x * 7 + 1; }
    __attribute__((noinline)) void use(void *p) { __asm__ volatile("" :: "r"(p) : "memory"); }
    #define FUNCTION(name, extra) __attribute__((noinline)) int name(int n, int m) { \
        char room[n + 16]; use(room); \
        if (n > 1000) { for (int i = 0; i < m; i++) n += rare(i) + room[i]; if (n > extra) n += rare(n); } \
        switch (m) { case 0: return rare(n); case 1: return n + room[1]; case 2: n = rare(m); break; case 3: n ^= extra; break; \
            case 4: return rare(n + 4) + room[2]; case 5: n += room[5]; break; default: abort(); } \
        use(room); if (n == extra) { rare(n); exit(rare(extra)); } return n + room[3]; }
    FUNCTION(a, 5) FUNCTION(b, 6) FUNCTION(c, 7) FUNCTION(d, 8)
    int main(int argc, char **argv) { return a(argc, argc) + b(argc, argc) + c(argc, argc) + d(argc, argc); }"#;

#[test]
fn jumps_show_the_parents_that_names_have_shown() {
    if !has("strip") {
        return skipped("no strip");
    }
    let mut parts = 0;
    for (number, flags) in [
        &["-O2"][..],
        &["-O3"],
        &["-O2", "-fno-pie", "-no-pie"],
        &["-O2", "-fno-omit-frame-pointer"],
        &["-Os", "-fno-pie", "-no-pie"],
        &["-O2", "-fno-plt", "-fcf-protection"],
    ]
    .into_iter()
    .enumerate()
    {
        let program = compile(&folder(&format!("stripped-{number}")), "gcc", &[("a.c", SOURCE)], flags);
        let stripped = program.with_extension("stripped");
        run("strip", &["-s", "-o", stripped.to_str().unwrap(), program.to_str().unwrap()]);
        let (bytes, stripped) = (std::fs::read(program).unwrap(), std::fs::read(stripped).unwrap());
        let (named, nameless) = (Image::read(&bytes).unwrap(), Image::read(&stripped).unwrap());
        check(&nameless);
        for part in &named.functions {
            let FunctionKind::Cold(Some(parent)) = part.kind else { continue };
            let index = nameless.functions.binary_search_by_key(&part.address, |f| f.address).unwrap();
            let found = &nameless.functions[index];
            // Where a part begins with a function's frame, it cannot be told from a function.
            if part.frame == Some(false) {
                assert_eq!(found.kind, FunctionKind::Cold(None));
                let other = nameless.parent(index).unwrap_or_else(|| panic!("{flags:?}: {part:#x?}"));
                assert_eq!(nameless.functions[other].address, named.functions[parent].address, "{flags:?}");
                parts += 1;
            }
        }
    }
    assert!(parts >= 12, "only {parts} parts were compared");
}

/// Returns the parents of the nameless parts of a program that consists of this assembly. `part` is a part that begins inside a
/// frame, and contains `body`.
fn parents(test: &str, text: &str) -> Vec<Option<String>> {
    let source = format!(
        ".macro function name\n.globl \\name\n.type \\name,@function\n\\name: .cfi_startproc\npush %rbx\n\
         .cfi_adjust_cfa_offset 8\n.endm\n\
         .macro end name\npop %rbx\n.cfi_adjust_cfa_offset -8\nret\n.cfi_endproc\n.size \\name,.-\\name\n.endm\n\
         .macro part\n.cfi_startproc\n.cfi_def_cfa_offset 16\n.endm\n\
         .macro far\n.skip 300, 0x90\n.endm\n\
         .text\n.globl _start\n_start: call f\nfar\n{text}"
    );
    let flags = ["-nostdlib", "-static", "-no-pie"];
    let program = compile(&folder(&format!("stripped-{test}")), "gcc", &[("a.s", &source)], &flags);
    let bytes = std::fs::read(program).unwrap();
    let image = Image::read(&bytes).unwrap();
    check(&image);
    let nameless = (0..image.functions.len()).filter(|&index| image.functions[index].name.is_empty());
    let parent = nameless.map(|index| {
        assert_eq!(image.functions[index].kind, FunctionKind::Cold(None));
        image.parent(index).map(|parent| image.functions[parent].name.to_owned())
    });
    parent.collect()
}

const G: &str = "function g\nnop\nend g\nfar\n";

#[test]
fn one_function_jumps_to_its_part() {
    let f = "function f\ntest %edi,%edi\njs 0f\n9: nop\nend f\nfar\n";
    assert_eq!(
        parents("one", &format!("{f}{G}part\n0: nop\njmp 9b\n.cfi_endproc\n")),
        [Some("f".to_owned())]
    );
    // Over a distance of one byte.
    let near = f.replace("far\n", "");
    assert_eq!(
        parents("near", &format!("{near}part\n0: nop\njmp 9b\n.cfi_endproc\n")),
        [Some("f".to_owned())]
    );
}

#[test]
fn parts_lead_to_parts() {
    let f = "function f\ntest %edi,%edi\njs 0f\n9: nop\nend f\nfar\n";
    let chain = format!(
        "{f}{G}part\n0: js 1f\njmp 9b\n.cfi_endproc\nfar\npart\n1: js 2f\njmp 9b\n.cfi_endproc\nfar\n\
         part\n2: jmp 1b\n.cfi_endproc\n"
    );
    let expected = vec![Some("f".to_owned()); 3];
    assert_eq!(parents("chain", &chain), expected);
    // Nothing leads into a circle of parts.
    let circle = format!(
        "{f}{G}part\n0: jmp 9b\n.cfi_endproc\nfar\npart\n1: jmp 2f\n.cfi_endproc\nfar\npart\n2: jmp 1b\n.cfi_endproc\n"
    );
    assert_eq!(parents("circle", &circle), [Some("f".to_owned()), None, None]);
}

#[test]
fn a_part_that_something_else_enters_has_no_parent() {
    let part = "part\n0: nop\njmp 9b\n.cfi_endproc\n";
    let f = "function f\ntest %edi,%edi\njs 0f\n9: nop\nend f\nfar\n";
    for (test, g) in [
        ("two", "function g\njs 0f\nend g\nfar\n"),
        ("called", "function g\ncall 0f\nend g\nfar\n"),
        ("taken", "function g\nlea 0f(%rip),%rax\nend g\nfar\n"),
        // Another function's jump over a distance of one byte, or its end.
        ("two-near", "far\nfunction g\njs 0f\nend g\n"),
        ("run-into", "far\nfunction g\nnop\n.cfi_endproc\n.size g,.-g\n"),
        // Code that is in no function.
        ("unknown", "nop\nfar\n.type label,@object\nlabel: js 0f\nfar\n"),
    ] {
        assert_eq!(parents(test, &format!("{f}{g}{part}")), [None], "{test}");
    }
    // Both functions jump to one part, which jumps to another.
    let two = format!(
        "{f}function g\njs 0f\nend g\nfar\npart\n0: jmp 1f\n.cfi_endproc\nfar\npart\n1: jmp 9b\n.cfi_endproc\n"
    );
    assert_eq!(parents("two-chain", &two), [None, None]);
}

#[test]
fn bytes_that_look_like_a_jump_are_none() {
    // The operand of `mov` contains `jmp 0f`, the bytes of which are in the way of no instruction.
    let f = "function f\ntest %edi,%edi\njs 0f\n9: nop\nend f\nfar\n";
    let g = "function g\n.byte 0x48, 0xb8, 0x90, 0x90, 0xe9\n.long 0f - . - 4\n.byte 0x90\nend g\nfar\n";
    assert_eq!(parents("like", &format!("{f}{g}part\n0: jmp 9b\n.cfi_endproc\n")), [Some("f".to_owned())]);
}
