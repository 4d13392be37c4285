// Functions of 1 to 5 bytes followed by padding of each kind: nops, int3, zeros.
//# arc: main -> one 10
//# arc: main -> two 20
//# arc: main -> three 30
//# arc: main -> four 40
//# arc: main -> five 50
//# arc: main -> short_jump 60
//# arc: short_jump -> four 60
//# entry-arc: main -> four 100
#include "test.h"
#define ALIGN __asm__(".text\n.p2align 4");
ALIGN
ASM_FUNCTION(one, "ret");
ALIGN
ASM_FUNCTION(two, "rep ret");
__asm__(".text\n.p2align 4, 0xcc");
ASM_FUNCTION(three, "xor %eax, %eax\n ret");
__asm__(".text\n.p2align 4, 0xcc");
ASM_FUNCTION(four, "lea 1(%rdi), %eax\n ret");
__asm__(".text\n.p2align 4, 0");
ASM_FUNCTION(five, "lea 1(%rdi), %rax\n ret");
__asm__(".text\n.p2align 4, 0");
ASM_FUNCTION(short_jump, ".byte 0xeb, four - . - 1");
ALIGN
void one(void), two(void);
int three(void), four(int), short_jump(int);
long five(long);
int main(void) {
    for (int i = 0; i < 10; i++) one();
    for (int i = 0; i < 20; i++) two();
    for (int i = 0; i < 30; i++) CHECK(three() == 0);
    for (int i = 0; i < 40; i++) CHECK(four(i) == i + 1);
    for (int i = 0; i < 50; i++) CHECK(five(i) == i + 1);
    for (int i = 0; i < 60; i++) CHECK(short_jump(i) == i + 1);
    return 0;
}
