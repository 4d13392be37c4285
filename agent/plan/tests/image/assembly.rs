//! Labels of hand-written assembly.

use crate::build::{around, check, compile, compile_if_possible, folder, named};
use gprofinject_image::{FunctionKind, Image};
use gprofinject_plan::Flow;

fn assembled(test: &str, text: &str) -> Vec<u8> {
    let flags = ["-nostdlib", "-static", "-no-pie"];
    std::fs::read(compile(&folder(test), "gcc", &[("a.s", text)], &flags)).unwrap()
}

#[test]
fn labels() {
    let bytes = assembled(
        "labels",
        ".text
        .globl _start
        _start: nop                             # bare, global, no size
            jmp sized
            .type sized,@function
        sized: nop
        loop: dec %eax                          # bare, local, inside: no function
            jnz loop
            .globl inside
        inside: nop                             # bare, global, inside: no function, but a pointer
            ret
            .size sized,.-sized
            .globl outside
        outside: nop                            # bare, global, outside
            ret
        local: nop                              # bare, local, outside: of the one before
            ret
        described: .cfi_startproc               # bare, local, described
            nop
            ret
            .cfi_endproc
            .cfi_startproc                      # described, no name
            nop
            ret
            .cfi_endproc
        .section .text.other,\"ax\"
            .type first,@function
            .globl first
            .type _first,@function
            .globl __first
        _first: __first: first: nop
            nop",
    );
    let image = Image::read(&bytes).unwrap();
    check(&image);
    let list: Vec<(&str, u64, Option<bool>)> =
        image.functions.iter().map(|function| (function.name, function.size, function.frame)).collect();
    assert_eq!(
        list,
        [
            ("_start", 3, None),
            ("sized", 7, None),
            ("outside", 4, None),
            ("described", 2, Some(true)),
            ("", 2, Some(true)),
            ("first", 2, None),
        ]
    );
    assert_eq!(named(&image, "_start").kind, FunctionKind::Start);
    assert_eq!(named(&image, "first").aliases, ["_first", "__first"]);
    let sized = named(&image, "sized");
    // The kernel enters the program at its start.
    assert_eq!(image.details().code_pointers, [image.entry, sized.address + 5]);
}

#[test]
fn several_entries_of_one_function() {
    let bytes = assembled(
        "entries",
        ".text
        .globl _start
        .type _start,@function
        _start: nop
            .size _start,.-_start
        .type outer,@function
        outer: .cfi_startproc
            nop
        .type early,@function
        early: push %rbx                        # the return address is still on top
            .cfi_def_cfa_offset 16
        .type late,@function
        late: nop                               # and here it is not
            pop %rbx
            .cfi_def_cfa_offset 8
            ret
            .cfi_endproc
            .size outer,.-outer
            .size early,.-early
            .size late,.-late",
    );
    let image = Image::read(&bytes).unwrap();
    check(&image);
    let [outer, early, late] = ["outer", "early", "late"].map(|name| named(&image, name));
    assert_eq!((outer.size, outer.limit - outer.address, outer.frame), (1, 1, Some(true)));
    assert_eq!((early.size, early.kind, early.frame), (1, FunctionKind::Ordinary, Some(true)));
    assert_eq!((late.size, late.kind, late.frame), (3, FunctionKind::Cold(None), Some(false)));
}

#[test]
fn the_signal_restorer_is_never_called() {
    for (test, strip) in [("restorer", None), ("restorer-stripped", Some("-s"))] {
        let c = "#include <signal.h>\nstatic void h(int s) {}\nint main(void) { signal(2, h); return 0; }";
        let mut flags = vec!["-static"];
        flags.extend(strip);
        let Some(program) = compile_if_possible(&folder(test), "gcc", &[("a.c", c)], &flags) else { return };
        let bytes = std::fs::read(program).unwrap();
        let image = Image::read(&bytes).unwrap();
        // mov $15, %rax; syscall
        let restorer = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
        let segment = &image.code[0];
        let at = segment.bytes.windows(9).position(|window| window == restorer).unwrap() as u64;
        let function = around(&image, segment.address + at);
        assert_eq!((function.kind, function.frame), (FunctionKind::Cold(None), Some(false)));
        assert_eq!(function.name == "__restore_rt", strip.is_none());
        assert!(strip.is_some() || function.address == segment.address + at);
    }
}

#[test]
fn leaves() {
    let function = |(name, body): &(&str, &str)| {
        format!(".globl {name}\n.type {name},@function\n{name}: {body}\n.size {name},.-{name}\n.p2align 4\n")
    };
    let leaves = [
        ("returns", "lea 1(%rdi), %eax\n ret"),
        ("loops", "1: dec %edi\n jnz 1b\n 2: jmp 3f\n 3: mov %edi, %eax\n ret"),
        ("traps", "test %edi, %edi\n jz 1f\n ret\n 1: ud2"),
        ("spins", "1: pause\n jmp 1b"),
    ];
    let others = [
        ("_start", "call returns\n hlt"),
        ("jumps", "lea 1(%rdi), %edi\n jmp returns"),
        ("jumps_perhaps", "test %edi, %edi\n jz returns\n ret"),
        ("points", "mov %rdi, %rax\n jmp *%rax"),
        ("through", "call *%rdi\n ret"),
        ("system", "mov $39, %eax\n syscall\n ret"),
        ("interrupts", "int $0x80\n ret"),
        ("runs_on", "lea 1(%rdi), %edi\n nop"),
        ("unknown", "lea 1(%rdi), %eax\n ret\n .byte 6"),
    ];
    let text: String = leaves.iter().chain(&others).map(function).collect();
    let bytes = assembled("leaves", &text);
    let image = Image::read(&bytes).unwrap();
    let flow = Flow::of(&image, true);
    let found = image.functions.iter().zip(&flow.functions).filter(|(_, f)| f.leaf).map(|(f, _)| f.name);
    assert_eq!(found.collect::<Vec<_>>(), leaves.map(|(name, _)| name));
    assert_eq!(image.functions.len(), leaves.len() + others.len());
}

/// Control may jump to the label through a register, whose value the analysis does not follow, so the bytes
/// at the label must stay.
#[test]
fn a_label_whose_address_is_computed_is_entered() {
    let bytes = assembled(
        "computed_label",
        ".text
        .globl _start
        .type _start,@function
        _start: lea label(%rip), %rdx
            jmp *%rdx
            .size _start,.-_start
        .type shared,@function
        shared: xor %ecx, %ecx
        label: inc %eax
            ret
            .size shared,.-shared",
    );
    let image = Image::read(&bytes).unwrap();
    let shared = named(&image, "shared").address;
    assert_eq!(Flow::of(&image, true).indirect, [shared + 2]);
}

/// Code of the large model computes the address of the global offset table as the sum of a label and a
/// constant, and does not jump to the label. Another use of the label, also of a copy that is left in a
/// register, may be a jump.
#[test]
fn a_label_that_a_constant_is_added_to_is_not_entered() {
    let starts = [
        (
            false,
            "lea label(%rip), %rbx; movabs $0x123456789, %r11; mov %edi, %eax; add %r11, %rbx; jmp *8(%rbx)",
        ),
        (false, "movabs $0x123456789, %r11; lea label(%rip), %r10; add %r11, %r10; call *%r10; ret"),
        (
            false,
            "lea label(%rip), %rax; movabs $0x123456789, %rbx; add %rax, %rbx; movabs $8, %rax; call *(%rbx,%rax)",
        ),
        (false, "lea label(%rip), %rax; movabs $0x123456789, %rbx; add %rax, %rbx; call *(%rbx); ret"),
        (true, "lea label(%rip), %rax; movabs $0x123456789, %rbx; add %rax, %rbx; call *(%rbx,%rax)"),
        (
            true,
            "lea label(%rip), %rax; movabs $0x123456789, %rbx; add %rax, %rbx; mov (%rbx), %rcx; jmp *%rax",
        ),
        (true, "lea label(%rip), %rbp; movabs $0x123456789, %rbx; add %rbp, %rbx; call *(%rbx); jmp *%rbp"),
        (true, "lea label(%rip), %rbx; movabs $0x123456789, %r11; mov %rbx, %rcx; add %r11, %rbx; jmp *%rcx"),
        (true, "lea label(%rip), %rbx; lea label(%rip), %rcx; movabs $9, %r11; add %r11, %rbx; jmp *%rcx"),
        (true, "lea label(%rip), %rbx; movabs $9, %r11; cmp %r11, %rbx; jmp *%rbx"),
    ];
    for (n, (is_entered, start)) in starts.into_iter().enumerate() {
        let bytes = assembled(
            &format!("table_label_{n}"),
            &format!(
                ".text
                .globl _start
                .type _start,@function
                _start: nop
                label: {start}
                    ud2
                    .size _start,.-_start"
            ),
        );
        let image = Image::read(&bytes).unwrap();
        let label = named(&image, "_start").address + 1;
        assert_eq!(Flow::of(&image, true).indirect == [label], is_entered, "{start}");
    }
}

/// Padding is not free if control runs through it, or may do so when a call returns.
#[test]
fn padding_is_free_where_control_does_not_run_on() {
    let ends = [
        (true, "ret"),
        (true, "jmp _start"),
        (true, "jmp *%rax"),
        (false, "inc %eax"),
        (false, "jne _start"),
        (false, "call _start"),
        (false, "call *%rax"),
        (false, "ret; .byte 0x06"),
    ];
    for (n, (is_free, last)) in ends.into_iter().enumerate() {
        let bytes = assembled(
            &format!("padding_{n}"),
            &format!(
                ".text
                .globl _start
                .type _start,@function
                _start: push %rbx
                    {last}
                    .size _start,.-_start
                .fill 8, 1, 0x90
                .type next,@function
                next: ret
                    .size next,.-next"
            ),
        );
        let image = Image::read(&bytes).unwrap();
        let flow = Flow::of(&image, true);
        let first =
            image.functions.iter().position(|f| f.address == named(&image, "_start").address).unwrap();
        let f = &image.functions[first];
        let (end, next) = (f.address + f.size, named(&image, "next").address);
        assert_eq!((next, f.limit), (end + 8, next));
        assert_eq!(flow.has_free_padding(&image, first), is_free, "{last}");
    }
}
