// Hand-written functions without unwind information, with calling conventions of their own.
//# arc: main -> bare 10
//# arc: main -> pops 40
//# arc: main -> by_ret 50
#include "test.h"
__asm__(".text\n"
    ".globl bare\n .type bare, @function\n bare: mov %edi, %eax\n add $1, %eax\n ret\n .size bare, . - bare\n"
    // Takes its argument from the stack, and off it.
    ".globl pops\n .type pops, @function\n pops: mov 8(%rsp), %rax\n add $1, %rax\n ret $8\n .size pops, . - pops\n"
    // Leaves by a return to an address that it has pushed.
    ".globl by_ret\n .type by_ret, @function\n by_ret: lea 1f(%rip), %rax\n push %rax\n ret\n"
    "1: lea 1(%rdi), %eax\n ret\n .size by_ret, . - by_ret\n");
int bare(int), by_ret(int);
int main(void) {
    for (int i = 0; i < 10; i++) CHECK(bare(i) == i + 1);
    for (long i = 0; i < 40; i++) {
        long r;
        __asm__ volatile("sub $128, %%rsp\n push %1\n call pops\n add $128, %%rsp" : "=&a"(r) : "r"(i) : "memory", "cc");
        CHECK(r == i + 1);
    }
    for (int i = 0; i < 50; i++) CHECK(by_ret(i) == i + 1);
    return 0;
}
