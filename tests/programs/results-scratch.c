// Hand-written code that returns results in r10 and r11, and takes an input in r10 that it passes on.
//# hooks: both
//# arc: main -> one 1000
//# arc: main -> two 1000
//# arc: main -> pass 1000
//# arc: pass -> take 1000
#include "test.h"
// r11 is changed and used, then set to the result.
ASM_FUNCTION(one, "mov %rdi, %r11\n lea 1(%r11), %rax\n mov %rax, %r11\n add %rax, %r11\n xor %eax, %eax\n ret");
ASM_FUNCTION(two, "lea 3(%rdi), %r10\n mov %r10, %rax\n lea 5(%rax), %r11\n lea 7(%rax), %r10\n ret");
// Reads r10 on one path only, behind an instruction that writes it on the other.
ASM_FUNCTION(take, "test %rdi, %rdi\n jne 1f\n mov $9, %r10d\n mov %r10, %rax\n ret\n1: lea (%rdi,%r10), %rax\n ret");
ASM_FUNCTION(pass, "add $1, %rdi\n jmp take");
int main(void) {
    for (long i = 0; i < 1000; i++) {
        long a = i, r10, r11;
        __asm__ volatile("call one\n mov %%r11, %0" : "=r"(r11), "+D"(a)::"rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory");
        CHECK(r11 == 2 * (i + 1));
        a = i;
        __asm__ volatile("call two\n mov %%r11, %0\n mov %%r10, %1" : "=&r"(r11), "=&r"(r10), "+D"(a)::"rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory");
        CHECK(r11 == i + 8 && r10 == i + 10);
        a = i;
        __asm__ volatile("mov %2, %%r10\n call pass\n mov %%rax, %0" : "=&r"(r11), "+D"(a) : "r"(3 * i) : "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory");
        CHECK(r11 == 4 * i + 1);
    }
    return 0;
}
