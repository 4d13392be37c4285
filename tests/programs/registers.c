// With -fipa-ra a caller may keep values in any register that it knows the callee preserves. This caller keeps a value
// in every one of them, and checks all values after the call.
//# arc: main -> full 1000
//# arc: full -> leaf 1000
//# arc: full -> bare 1000
#include "test.h"
__attribute__((used)) int counter;
ASM_FUNCTION(leaf, "incl counter(%rip)\n ret");
ASM_FUNCTION(bare, "ret");
#define LOAD(r, v) "mov $" #v ", %" #r "\n"
#define SAME(r, v) "cmp $" #v ", %" #r "\n jne 9f\n"
#define GENERAL(X) \
    X(rax, 0x101) X(rcx, 0x102) X(rdx, 0x103) X(rsi, 0x104) X(rdi, 0x105) X(r8, 0x106) X(r9, 0x107) \
    X(r10, 0x108) X(r11, 0x109) X(rbx, 0x10a) X(r12, 0x10b) X(r13, 0x10c) X(r14, 0x10d) X(r15, 0x10e)
#define VECTORS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define VLOAD(n) "mov $0x7700" #n ", %eax\n movd %eax, %xmm" #n "\n punpcklqdq %xmm" #n ", %xmm" #n "\n"
#define VSAME(n) "movq %xmm" #n ", %rax\n cmp $0x7700" #n ", %rax\n jne 9f\n" \
    "movhlps %xmm" #n ", %xmm" #n "\n movq %xmm" #n ", %rax\n cmp $0x7700" #n ", %rax\n jne 9f\n"
ASM_FUNCTION(full,
    "push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n sub $8, %rsp\n"
    VECTORS(VLOAD) "fld1\n fldpi\n" GENERAL(LOAD)
    "mov %rsp, %rbp\n call leaf\n call bare\n cmp %rsp, %rbp\n jne 9f\n"
    GENERAL(SAME) VECTORS(VSAME)
    "fldpi\n fcomip %st(1), %st\n jne 9f\n fstp %st\n fld1\n fcomip %st(1), %st\n jne 9f\n fstp %st\n"
    "mov $1, %eax\n jmp 8f\n"
    "9: xor %eax, %eax\n 8: add $8, %rsp\n"
    "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret");
int full(void);
int main(void) {
    for (int i = 0; i < 1000; i++) CHECK(full());
    CHECK(counter == 1000);
    return 0;
}
