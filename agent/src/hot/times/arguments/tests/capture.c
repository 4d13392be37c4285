/* Calls a function as its caller does, and shows its registers to the test when it begins and when it has returned. */
#include <stddef.h>
#include <string.h>

struct registers {
    unsigned long integers[7], vectors[8], cfa;
};

#ifdef CAPTURE_CODE
#define VARIABLE
#else
#define VARIABLE extern
#endif

#ifdef __cplusplus
extern "C" {
#endif
/* Set by the test. */
VARIABLE void (*on_entry)(const struct registers *);
VARIABLE void (*on_exit_)(const struct registers *);
/* What the called function has got (from 0 on), or what its caller has got back (-1). `mask` has the bits that count. */
VARIABLE void (*note)(int argument, const void *bytes, const void *mask, unsigned long size);

/* The function that `capture` calls with its own arguments. */
VARIABLE __attribute__((visibility("hidden"))) void *capture_target;
void capture(void);
#ifdef __cplusplus
}
#endif

#ifdef CAPTURE_CODE
__attribute__((visibility("hidden"))) struct registers capture_at_entry, capture_at_exit;
__attribute__((visibility("hidden"))) unsigned long capture_return, capture_rax, capture_stack;
__attribute__((visibility("hidden"))) unsigned char capture_vectors[128];
__asm__(
    ".text\n.globl capture\n.type capture, @function\ncapture:\n"
    "mov %rdi, capture_at_entry+0(%rip)\n mov %rsi, capture_at_entry+8(%rip)\n"
    "mov %rdx, capture_at_entry+16(%rip)\n mov %rcx, capture_at_entry+24(%rip)\n"
    "mov %r8, capture_at_entry+32(%rip)\n mov %r9, capture_at_entry+40(%rip)\n"
    "mov %rax, capture_at_entry+48(%rip)\n mov %rax, capture_rax(%rip)\n"
    "movq %xmm0, capture_at_entry+56(%rip)\n movq %xmm1, capture_at_entry+64(%rip)\n"
    "movq %xmm2, capture_at_entry+72(%rip)\n movq %xmm3, capture_at_entry+80(%rip)\n"
    "movq %xmm4, capture_at_entry+88(%rip)\n movq %xmm5, capture_at_entry+96(%rip)\n"
    "movq %xmm6, capture_at_entry+104(%rip)\n movq %xmm7, capture_at_entry+112(%rip)\n"
    "movups %xmm0, capture_vectors+0(%rip)\n movups %xmm1, capture_vectors+16(%rip)\n"
    "movups %xmm2, capture_vectors+32(%rip)\n movups %xmm3, capture_vectors+48(%rip)\n"
    "movups %xmm4, capture_vectors+64(%rip)\n movups %xmm5, capture_vectors+80(%rip)\n"
    "movups %xmm6, capture_vectors+96(%rip)\n movups %xmm7, capture_vectors+112(%rip)\n"
    "lea 8(%rsp), %rax\n mov %rax, capture_at_entry+120(%rip)\n mov %rax, capture_at_exit+120(%rip)\n"
    /* The stack is aligned before the call, so it is now 8 off. */
    "sub $8, %rsp\n"
    "lea capture_at_entry(%rip), %rdi\n mov on_entry@GOTPCREL(%rip), %rax\n call *(%rax)\n"
    "add $8, %rsp\n"
    "mov capture_at_entry+0(%rip), %rdi\n mov capture_at_entry+8(%rip), %rsi\n"
    "mov capture_at_entry+16(%rip), %rdx\n mov capture_at_entry+24(%rip), %rcx\n"
    "mov capture_at_entry+32(%rip), %r8\n mov capture_at_entry+40(%rip), %r9\n"
    "mov capture_rax(%rip), %rax\n"
    "movups capture_vectors+0(%rip), %xmm0\n movups capture_vectors+16(%rip), %xmm1\n"
    "movups capture_vectors+32(%rip), %xmm2\n movups capture_vectors+48(%rip), %xmm3\n"
    "movups capture_vectors+64(%rip), %xmm4\n movups capture_vectors+80(%rip), %xmm5\n"
    "movups capture_vectors+96(%rip), %xmm6\n movups capture_vectors+112(%rip), %xmm7\n"
    "pop capture_return(%rip)\n"
    "call *capture_target(%rip)\n"
    "mov %rax, capture_at_exit+48(%rip)\n mov %rdx, capture_at_exit+16(%rip)\n"
    "movq %xmm0, capture_at_exit+56(%rip)\n movq %xmm1, capture_at_exit+64(%rip)\n"
    "movups %xmm0, capture_vectors+0(%rip)\n movups %xmm1, capture_vectors+16(%rip)\n"
    "push capture_return(%rip)\n sub $8, %rsp\n"
    "lea capture_at_exit(%rip), %rdi\n mov on_exit_@GOTPCREL(%rip), %rax\n call *(%rax)\n"
    "add $8, %rsp\n"
    "mov capture_at_exit+48(%rip), %rax\n mov capture_at_exit+16(%rip), %rdx\n"
    "movups capture_vectors+0(%rip), %xmm0\n movups capture_vectors+16(%rip), %xmm1\n"
    "ret\n.size capture, . - capture\n");
#endif
