//! Which functions use their return address for anything but a return. In assembly, each function's name says
//! whether it does; of compiled functions, only those do that ask for a return address.

use crate::build::{compile, folder, has};
use gprofinject_image::Image;
use gprofinject_plan::Flow;
use std::path::Path;

/// Functions whose names begin with `yes_` need the original return address; those with `no_` do not.
const ASSEMBLY: &str = r#"
.macro function name
.text
.globl \name
.type \name, @function
\name:
.endm
.macro end name
.size \name, . - \name
.endm

function yes_pop
    pop %rax; push %rax; mov %rax, saved(%rip); call other; ret
end yes_pop
function yes_pop_late
    push %rbx; mov %edi, %ebx; call other; test %ebx, %ebx; je 1f; pop %rbx; pop %rax; jmp *%rax
1:  pop %rbx; ret
end yes_pop_late
function yes_load
    sub $24, %rsp; mov 24(%rsp), %rax; mov %rax, saved(%rip); call other; add $24, %rsp; ret
end yes_load
function yes_load_late
    sub $24, %rsp; test %edi, %edi; jne 1f; call other; add $24, %rsp; ret
1:  mov 24(%rsp), %rsi; call other; add $24, %rsp; ret
end yes_load_late
function yes_exchange
    push %rbx; xchg %rax, 8(%rsp); call other; pop %rbx; ret
end yes_exchange
function yes_push
    pushq (%rsp); call other; pop saved(%rip); ret
end yes_push
function yes_push_and_return
    call other; push (%rsp); ret
end yes_push_and_return
function yes_vector
    movups -8(%rsp), %xmm0; movups %xmm0, saved(%rip); call other; ret
end yes_vector
function yes_half
    call other; mov 4(%rsp), %eax; ret
end yes_half
function yes_by_frame_pointer
    push %rbp; mov %rsp, %rbp; sub $32, %rsp; call other; mov 8(%rbp), %rax; leave; ret
end yes_by_frame_pointer
function yes_by_other_register
    mov %rsp, %r12; sub $8, %rsp; call other; mov (%r12), %rax; add $8, %rsp; ret
end yes_by_other_register
function yes_by_sum
    lea -100(%rsp), %r12; add $60, %r12; sub $-32, %r12; call other; mov 8(%r12), %rax; ret
end yes_by_sum
function yes_write
    call other; mov %rax, (%rsp); ret
end yes_write
function yes_add
    call other; addq $2, (%rsp); ret
end yes_add
function yes_discard
    call other; add $8, %rsp; ret
end yes_discard
function yes_discard_lea
    call other; lea 8(%rsp), %rsp; jmp *%rax
end yes_discard_lea
function yes_string
    mov %rsp, %rsi; lea saved(%rip), %rdi; mov $1, %ecx; rep movsq; call other; ret
end yes_string
function yes_address
    push %rbp; mov %rsp, %rbp; lea 8(%rbp), %rdi; call other; leave; ret
end yes_address
function yes_aligned
    push %rbx; mov %rsp, %rbx; and $-64, %rsp; push 8(%rbx); popq saved(%rip); call other; mov %rbx, %rsp; pop %rbx; ret
end yes_aligned
function yes_copy_in_frame
    push %rbx; mov %rsp, %rbx; and $-32, %rsp; push 8(%rbx); push %rbp; mov %rsp, %rbp; call other; mov 8(%rbp), %rax; mov %rbx, %rsp
    pop %rbx; ret
end yes_copy_in_frame
function yes_return_by_number
    call other; ret $8
end yes_return_by_number
function yes_jumps_to_one
    mov $1, %edi; jmp yes_pop
end yes_jumps_to_one
function yes_called_by_a_reader
    push %rbp; mov %rsp, %rbp; call no_reads_callers; leave; ret
end yes_called_by_a_reader

function no_reads_callers
    push %rbp; mov %rsp, %rbp; call other; mov (%rbp), %rax; mov 8(%rax), %rax; leave; ret
end no_reads_callers
function no_own_address
    push %rbx; call 1f
1:  pop %rbx; call other; pop %rbx; ret
end no_own_address
function no_subroutine
    push %rbx; call 1f; call 1f; pop %rbx; ret
1:  sub $8, %rsp; call other; add $8, %rsp; ret
end no_subroutine
function no_thunk
    call 1f
2:  pause; lfence; jmp 2b
1:  mov %rax, (%rsp); ret
end no_thunk
function no_fence
    call other; lock orq $0, (%rsp); ret
end no_fence
function no_arguments
    push %rbx; mov 16(%rsp), %rdi; lea 16(%rsp), %rsi; call other; pop %rbx; ret
end no_arguments
function no_locals
    sub $24, %rsp; movups %xmm0, 8(%rsp); mov 16(%rsp), %rax; lea 8(%rsp), %rdi; call other; add $24, %rsp; ret
end no_locals
function no_aligned
    lea 8(%rsp), %r10; and $-32, %rsp; push -8(%r10); push %rbp; mov %rsp, %rbp; push %r10; call other; pop %r10; pop %rbp
    lea -8(%r10), %rsp; ret
end no_aligned
function no_switches_stacks
    push %rbx; push %rbp; mov %rsp, (%rdi); mov %rsi, %rsp; pop %rbp; pop %rbx; ret
end no_switches_stacks
function no_walks
    push %rbp; mov %rsp, %rbp; mov %rbp, %rax
1:  mov 8(%rax), %rcx; mov (%rax), %rax; test %rax, %rax; jne 1b; pop %rbp; ret
end no_walks
function no_red_zone
    mov %rdi, -8(%rsp); movq %rsi, -16(%rsp); movups -16(%rsp), %xmm0; ret
end no_red_zone
function no_two_ends
    test %edi, %edi; je 1f; push %rbx; push %r12; sub $8, %rsp; call other; add $8, %rsp; pop %r12; pop %rbx; ret
1:  sub $8, %rsp; call other; mov (%rsp), %rax; add $8, %rsp; ret
end no_two_ends
function other
    ret
end other
function main
    xor %eax, %eax; ret
end main
.data
saved: .quad 0, 0
.section .note.GNU-stack, "", @progbits
"#;

/// Functions for which compilers emit similar code, and functions that do ask for a return address.
const C: &str = r#"
#include <alloca.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <immintrin.h>
#define OPAQUE __attribute__((noinline))
OPAQUE void use(void *p, void *q) { __asm__ volatile("" :: "r"(p), "r"(q) : "memory"); }
OPAQUE void ends(void) { long a[3] = {1, 2, 3}; use(a, a + 3); }
OPAQUE void fence(void) { use(0, 0); __atomic_thread_fence(__ATOMIC_SEQ_CST); }
OPAQUE int sum(int n, ...) { va_list l; va_start(l, n); int s = 0; while (n--) s += va_arg(l, int); va_end(l); use(&s, 0); return s; }
OPAQUE int room(int n) { char *p = alloca(n); memset(p, 1, n); use(p, p + n); return p[n / 2]; }
struct Big { long v[9]; };
OPAQUE long big(struct Big b) { use(&b, &b + 1); return b.v[3]; }
OPAQUE int wide(int n) { char *p = alloca(n); int a[8] __attribute__((aligned(64))) = {n}; use(p, a); return a[n & 7]; }
OPAQUE int many(int a, int b, int c, int d, int e, int f, int g, int h) { use(&g, &h); return a + b + c + d + e + f + g + h; }
OPAQUE int jumps(int n) { jmp_buf b; if (setjmp(b)) return 1; use(b, 0); if (n) longjmp(b, 1); return 0; }
OPAQUE void *own(void) { use(0, 0); return __builtin_return_address(0); }
OPAQUE int table(int n) {
    switch (n) { case 0: use(0, 0); return 3; case 1: use(&n, 0); return 7; case 2: return sum(1, n); case 3: return room(n);
    case 4: return many(1, 2, 3, 4, 5, 6, n, 8); case 5: ends(); return 2; default: return big((struct Big){{n}}); }
}
int main(int c, char **v) { return table(c) + wide(c) + jumps(c) + (own() == 0) + (fence(), 0); }
"#;

fn odd(program: &Path) -> Vec<String> {
    let bytes = std::fs::read(program).unwrap();
    let image = Image::read(&bytes).unwrap();
    let flow = Flow::of(&image, true);
    let all = image.functions.iter().zip(&flow.functions);
    all.filter(|(_, flow)| flow.odd_return).map(|(f, _)| f.name.to_string()).collect()
}

#[test]
fn assembly_is_what_it_says() {
    let program = compile(&folder("return-slot"), "gcc", &[("a.s", ASSEMBLY)], &["-no-pie"]);
    let bytes = std::fs::read(&program).unwrap();
    let image = Image::read(&bytes).unwrap();
    let mut expected: Vec<&str> = image.functions.iter().map(|f| f.name).collect();
    expected.retain(|name| name.starts_with("yes_"));
    assert_eq!(expected.len(), ASSEMBLY.matches("function yes_").count());
    let odd = odd(&program);
    let wrong: Vec<_> = odd.iter().filter(|name| !expected.contains(&name.as_str())).collect();
    let missed: Vec<_> = expected.iter().filter(|&&name| odd.iter().all(|odd| odd != name)).collect();
    assert!(wrong.is_empty() && missed.is_empty(), "wrong: {wrong:?}, missed: {missed:?}");
}

#[test]
fn compilers_hardly_do_it() {
    for compiler in ["gcc", "clang"] {
        if !has(compiler) {
            continue;
        }
        for flags in [
            &["-O0"][..],
            &["-O1", "-fno-asynchronous-unwind-tables"],
            &["-O2", "-fno-omit-frame-pointer"],
            &["-O2", "-mavx2", "-fcf-protection"],
            &["-O3", "-fno-pie", "-no-pie"],
            &["-Os", "-fstack-protector-all", "-fstack-clash-protection"],
        ] {
            let program = compile(&folder("return-slot-c"), compiler, &[("a.c", C)], flags);
            assert_eq!(odd(&program), ["own"], "{compiler} {flags:?}");
        }
    }
}
