// Functions of 1 to 5 bytes with no byte between them.
//# arc: main -> one 10
//# arc: main -> two 20
//# arc: main -> three 30
//# arc: main -> four 40
//# arc: main -> five 50
//# arc: main -> short_jump 60
//# arc: short_jump -> four 60
//# entry-arc: main -> four 100
//# arc: main -> two_b 70
//# arc: main -> three_b 80
//# arc: main -> one_b 90
//# arc: main -> five_b 100
#include "test.h"
ASM_FUNCTION(one, "ret");
ASM_FUNCTION(two, "rep ret");
ASM_FUNCTION(three, "xor %eax, %eax\n ret");
ASM_FUNCTION(four, "lea 1(%rdi), %eax\n ret");
ASM_FUNCTION(five, "lea 1(%rdi), %rax\n ret");
ASM_FUNCTION(short_jump, ".byte 0xeb, four - . - 1");
ASM_FUNCTION(two_b, "nop\n ret");
ASM_FUNCTION(three_b, "mov %edi, %eax\n ret");
ASM_FUNCTION(one_b, "ret");
ASM_FUNCTION(five_b, "endbr64\n ret");
void one(void), two(void), two_b(void), one_b(void), five_b(void);
int three(void), four(int), short_jump(int), three_b(int);
long five(long);
int main(void) {
    for (int i = 0; i < 10; i++) one();
    for (int i = 0; i < 20; i++) two();
    for (int i = 0; i < 30; i++) CHECK(three() == 0);
    for (int i = 0; i < 40; i++) CHECK(four(i) == i + 1);
    for (int i = 0; i < 50; i++) CHECK(five(i) == i + 1);
    for (int i = 0; i < 60; i++) CHECK(short_jump(i) == i + 1);
    for (int i = 0; i < 70; i++) two_b();
    for (int i = 0; i < 80; i++) CHECK(three_b(i) == i);
    for (int i = 0; i < 90; i++) one_b();
    for (int i = 0; i < 100; i++) five_b();
    return 0;
}
