// Interpreters with label tables, some of whose labels are the function's first instruction: each is called once per program.
//# arc: main -> run 10
//# arc: main -> pointers 10
//# arc: main -> threaded 10
//# arc: main -> behind 10
#include "test.h"

// gcc -O2 -fno-pie has the label `add` at the first instruction.
OPAQUE long run(const unsigned char *p, long v) {
    static void *const labels[] = {&&add, &&triple, &&stop};
add: v++; goto *labels[*p++];
triple: v *= 3; goto *labels[*p++];
stop: return v;
}

// The same with pointers that relocations write, and a value in the red zone.
ASM_FUNCTION(pointers,
    "lea 1(%rax), %rax\n mov %rax, -8(%rsp)\n"
    ".Lpointers_1: movzbl (%rcx), %edx\n inc %rcx\n lea pointers_table(%rip), %rsi\n mov (%rsi, %rdx, 8), %rdx\n jmp *%rdx\n"
    ".Lpointers_2: mov -8(%rsp), %rax\n lea (%rax, %rax, 2), %rax\n jmp .Lpointers_1\n .Lpointers_3: mov -8(%rsp), %rdx\n add %rdx, %rax\n ret\n"
    ".pushsection .data.rel.ro, \"aw\"\n .p2align 3\n pointers_table: .quad pointers, .Lpointers_2, .Lpointers_3\n .popsection");

// The program that is interpreted contains the labels itself, so that no table is used where the jumps are.
ASM_FUNCTION(threaded,
    "lea 1(%rax), %rax\n mov %rax, -16(%rsp)\n mov (%rcx), %rdx\n add $8, %rcx\n jmp *%rdx\n"
    ".Lthreaded_2: mov -16(%rsp), %rdx\n lea (%rdx, %rdx, 2), %rax\n mov (%rcx), %rdx\n add $8, %rcx\n jmp *%rdx\n"
    ".Lthreaded_3: ret\n"
    ".pushsection .data.rel.ro, \"aw\"\n .p2align 3\n .globl threads\n"
    "threads: .quad threaded, .Lthreaded_2, threaded, .Lthreaded_3\n .popsection");

// The table's first entry leads to a cold part, the second to the second instruction.
ASM_FUNCTION(behind,
    "inc %eax\n .Lbehind_1: inc %eax\n dec %ecx\n jz 2f\n mov %ecx, %edx\n and $1, %edx\n"
    "lea behind_table(%rip), %rsi\n movslq (%rsi, %rdx, 4), %rdx\n add %rsi, %rdx\n jmp *%rdx\n 2: ret\n"
    ".pushsection .text.unlikely, \"ax\"\n .type behind.cold, @function\n behind.cold: inc %eax\n jmp .Lbehind_1\n .size behind.cold, . - behind.cold\n"
    ".popsection\n .pushsection .rodata\n .p2align 2\n behind_table: .long behind.cold - behind_table, .Lbehind_1 - behind_table\n .popsection");

extern const void *const threads[];
static inline __attribute__((always_inline)) long call(void (*function)(void), const void *code, long value) {
    __asm__ volatile("sub $128, %%rsp\n call *%2\n add $128, %%rsp"
                     : "+c"(code), "+a"(value) : "r"(function) : "rdx", "rsi", "memory", "cc");
    return value;
}
void pointers(void), threaded(void), behind(void);

int main(void) {
    static const unsigned char code[] = {0, 1, 0, 0, 1, 2};
    for (int i = 0; i < 10; i++) {
        CHECK(run(code, 1) == 33);
        CHECK(call(pointers, code, 1) == 44);
        CHECK(call(threaded, threads, 1) == 10);
        CHECK(call(behind, (const void *)9, 0) == 14);
    }
    return 0;
}
