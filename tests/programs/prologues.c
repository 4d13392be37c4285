// First instructions that have another meaning at another address, or that are marks (endbr64).
//# arc: main -> load 10
//# arc: main -> store 10
//# arc: main -> compare 20
//# arc: main -> increment 30
//# arc: main -> address 40
//# arc: main -> marked 50
//# arc: main -> marked_load 60
//# arc: main -> branch 70
//# arc: main -> near_branch 80
//# arc: main -> count_branch 90
//# arc: main -> vector 11
//# arc: main -> long_first 12
//# arc: main -> locked 13
#include "test.h"
__asm__(".data\n .p2align 4\n cell: .long 7, 0, 0, 0\n .text");
ASM_FUNCTION(load, "mov cell(%rip), %eax\n ret");
ASM_FUNCTION(store, "mov %edi, cell(%rip)\n ret");
ASM_FUNCTION(compare, "cmpl $7, cell(%rip)\n sete %al\n movzbl %al, %eax\n ret"); // immediate behind the displacement
ASM_FUNCTION(increment, "incl cell(%rip)\n mov cell(%rip), %eax\n ret");
ASM_FUNCTION(address, "lea cell(%rip), %rax\n mov (%rax), %eax\n ret");
ASM_FUNCTION(marked, "endbr64\n mov %edi, %eax\n ret");
ASM_FUNCTION(marked_load, "endbr64\n mov cell(%rip), %eax\n ret");
ASM_FUNCTION(branch, "test %edi, %edi\n je 1f\n mov $1, %eax\n ret\n 1: mov $2, %eax\n ret");
ASM_FUNCTION(near_branch, "dec %edi\n js 1f\n mov $1, %eax\n ret\n .fill 200, 1, 0xcc\n 1: mov $2, %eax\n ret");
ASM_FUNCTION(count_branch, "mov %rdi, %rcx\n jrcxz 1f\n mov $1, %eax\n ret\n 1: mov $2, %eax\n ret");
ASM_FUNCTION(vector, "movdqa cell(%rip), %xmm0\n movd %xmm0, %eax\n ret");
ASM_FUNCTION(long_first, "movabs $0x1122334455667788, %rax\n shr $32, %rax\n ret");
ASM_FUNCTION(locked, "lock addl $0, cell(%rip)\n mov cell(%rip), %eax\n ret");
int load(void), compare(void), increment(void), address(void), marked(int), marked_load(void);
int branch(int), near_branch(int), count_branch(long), vector(void), long_first(void), locked(void);
void store(int);
int main(void) {
    for (int i = 0; i < 10; i++) { store(7 + i); CHECK(load() == 7 + i); }
    for (int i = 0; i < 20; i++) CHECK(compare() == 0);
    for (int i = 0; i < 30; i++) CHECK(increment() == 17 + i);
    for (int i = 0; i < 40; i++) CHECK(address() == 46);
    for (int i = 0; i < 50; i++) CHECK(marked(i) == i);
    for (int i = 0; i < 60; i++) CHECK(marked_load() == 46);
    for (int i = 0; i < 70; i++) CHECK(branch(i & 1) == 2 - (i & 1));
    for (int i = 0; i < 80; i++) CHECK(near_branch(i & 1) == 2 - (i & 1));
    for (int i = 0; i < 90; i++) CHECK(count_branch(i & 1) == 2 - (i & 1));
    for (int i = 0; i < 11; i++) CHECK(vector() == 46);
    for (int i = 0; i < 12; i++) CHECK(long_first() == 0x11223344);
    for (int i = 0; i < 13; i++) CHECK(locked() == 46);
    return 0;
}
