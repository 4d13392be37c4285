// Hand-written assembly passes conditions in the processor's flags, which hooks change. Such functions are not hooked.
//# arc: main -> smaller 10
//# arc: main -> sum 20
//# arc: main -> plain 30
//# arc: smaller -> plain 10
//# others: allowed
//# callgrind: no (it counts the functions that are not hooked as well)
#include "test.h"
// Returns a condition. It calls, so that its exit would be hooked.
ASM_FUNCTION(compare, "push %rbx\n call other\n pop %rbx\n cmp %esi, %edi\n mov %edi, %eax\n mov %esi, %edx\n ret");
ASM_FUNCTION(other, "mov %edi, %eax\n xor %esi, %eax\n ret");
// Its caller knows that it leaves the carry flag alone.
ASM_FUNCTION(load, "mov (%rsi), %rax\n mov (%rdi), %rdx\n lea 8(%rsi), %rsi\n lea 8(%rdi), %rdi\n ret");
// Takes the carry flag from its caller, and returns it.
ASM_FUNCTION(add_word, "adc %rdx, %rax\n mov %rax, (%r8)\n lea 8(%r8), %r8\n ret");
ASM_FUNCTION(smaller, "push %rbx\n call compare\n cmovge %edx, %eax\n mov %eax, %edi\n mov %eax, %ebx\n call plain\n"
                      " mov %ebx, %eax\n pop %rbx\n ret");
// The sum of two numbers of four words, into a third.
ASM_FUNCTION(sum, "mov %rdx, %r8\n mov $4, %ecx\n clc\n 1: call load\n call add_word\n dec %ecx\n jnz 1b\n setc %al\n"
                  " movzbl %al, %eax\n ret");
ASM_FUNCTION(plain, "mov %edi, %eax\n add $1, %eax\n ret");
int smaller(int, int), sum(const long *, const long *, long *), plain(int);
int main(void) {
    for (int i = 0; i < 10; i++) CHECK(smaller(i, 5) == (i < 5 ? i : 5));
    long a[4] = {-1, -1, -1, -1}, b[4] = {1, 0, 0, 0}, c[4];
    for (int i = 0; i < 20; i++) {
        b[1] = i;
        CHECK(sum(a, b, c) == 1);
        CHECK(c[0] == 0 && c[1] == i && c[2] == 0 && c[3] == 0);
    }
    for (int i = 0; i < 30; i++) CHECK(plain(i) == i + 1);
    return 0;
}
