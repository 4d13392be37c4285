// Tiny functions in a row, called through pointers, followed by functions of other kinds: one with a
// jump, one that begins with endbr64, one with a call in its first bytes. Registers and stack do not change.
//# arc: main -> a1 10
//# arc: main -> a2 20
//# arc: main -> a3 30
//# arc: main -> a4 40
//# arc: main -> a5 50
//# arc: main -> with_jump 60
//# arc: main -> b1 70
//# arc: main -> b2 80
//# arc: main -> with_endbr 90
//# arc: main -> c1 100
//# arc: main -> with_call 110
//# arc: with_call -> called 110
//# arc: main -> d1 120
//# arc: main -> all_kept 50
//# arc: all_kept -> d2 50
//# arc: all_kept -> d3 50
#include "test.h"
#define LOAD(r, v) "mov $" #v ", %" #r "\n"
#define SAME(r, v) "cmp $" #v ", %" #r "\n jne 9f\n"
#define GENERAL(X) \
    X(rax, 0x101) X(rcx, 0x102) X(rdx, 0x103) X(rsi, 0x104) X(rdi, 0x105) X(r8, 0x106) X(r9, 0x107) \
    X(r10, 0x108) X(r11, 0x109) X(rbx, 0x10a) X(r12, 0x10b) X(r13, 0x10c) X(r14, 0x10d) X(r15, 0x10e)
ASM_FUNCTION(a1, "ret");
ASM_FUNCTION(a2, "nop\n ret");
ASM_FUNCTION(a3, "xor %eax, %eax\n ret");
ASM_FUNCTION(a4, "lea 1(%rdi), %eax\n ret");
ASM_FUNCTION(a5, "ret");
ASM_FUNCTION(with_jump, "push %rbx\n mov %rdi, %rbx\n lea 2(%rbx), %rax\n pop %rbx\n ret");
ASM_FUNCTION(b1, "ret");
ASM_FUNCTION(b2, "ret");
ASM_FUNCTION(with_endbr, "endbr64\n push %rbx\n mov %rdi, %rbx\n lea 3(%rbx), %rax\n pop %rbx\n ret");
ASM_FUNCTION(c1, "ret");
ASM_FUNCTION(with_call, "push %rbx\n call *(%rdi)\n pop %rbx\n ret");
ASM_FUNCTION(d1, "ret");
ASM_FUNCTION(d2, "ret");
ASM_FUNCTION(d3, "ret");
ASM_FUNCTION(all_kept,
    "push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n sub $24, %rsp\n"
    "movq $0x77, (%rsp)\n movq $0x78, 8(%rsp)\n"
    GENERAL(LOAD) "mov %rsp, %rbp\n call *kept(%rip)\n call *8+kept(%rip)\n cmp %rsp, %rbp\n jne 9f\n" GENERAL(SAME)
    "cmpq $0x77, (%rsp)\n jne 9f\n cmpq $0x78, 8(%rsp)\n jne 9f\n"
    "mov $1, %eax\n jmp 8f\n"
    "9: xor %eax, %eax\n 8: add $24, %rsp\n"
    "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret");
void a1(void), a2(void), a5(void), b1(void), b2(void), c1(void), d1(void), d2(void), d3(void);
int a3(void), a4(int), all_kept(void);
long with_jump(long), with_endbr(long), with_call(long (**)(void));
__attribute__((used, visibility("hidden"))) void (*kept[])(void) = {d2, d3};
void (*volatile nothing[])(void) = {a1, a2, a5, b1, b2, c1, d1};
const int times[] = {10, 20, 50, 70, 80, 100, 120};
int (*volatile pa3)(void) = a3, (*volatile pa4)(int) = a4;
long (*volatile jump)(long) = with_jump, (*volatile endbr)(long) = with_endbr;
long (*volatile calls)(long (**)(void)) = with_call;
OPAQUE long called(void) { return 7; }
int main(void) {
    long (*to)(void) = called;
    for (int f = 0; f < 7; f++)
        for (int i = 0; i < times[f]; i++) nothing[f]();
    for (int i = 0; i < 30; i++) CHECK(pa3() == 0);
    for (int i = 0; i < 40; i++) CHECK(pa4(i) == i + 1);
    for (int i = 0; i < 60; i++) CHECK(jump(i) == i + 2);
    for (int i = 0; i < 90; i++) CHECK(endbr(i) == i + 3);
    for (int i = 0; i < 110; i++) CHECK(calls(&to) == 7);
    for (int i = 0; i < 50; i++) CHECK(all_kept());
    return 0;
}
