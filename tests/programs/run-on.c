// Control runs on from the end of a function into the next one: that is no call, however the first one was
// called. A function that is only run into cannot be called.
//# arc: main -> first 30
//# arc: main -> second 50
//# arc: main -> pushes 40
//# arc: main -> chain1 5
//# arc: main -> chain2 6
//# arc: main -> chain3 7
#include "test.h"
ASM_FUNCTION(first, "add $1, %edi\n nop\n nop");
ASM_FUNCTION(second, "mov %edi, %eax\n add $1, %eax\n ret");
ASM_FUNCTION(pushes, "push %rbx\n mov %edi, %ebx\n mov %ebx, %eax\n nop");
ASM_FUNCTION(pops, "add $3, %eax\n nop\n nop\n pop %rbx\n ret");
ASM_FUNCTION(chain1, "add $1, %edi\n nop\n nop");
ASM_FUNCTION(chain2, "add $1, %edi\n nop\n nop");
ASM_FUNCTION(chain3, "lea 1(%rdi), %eax\n ret\n nop\n nop");
int first(int), second(int), pushes(int), chain1(int), chain2(int), chain3(int);
int (*volatile by_pointer[])(int) = {first, second, second};
int main(void) {
    for (int i = 0; i < 20; i++) CHECK(first(i) == i + 2);
    for (int i = 0; i < 30; i++) CHECK(second(i) == i + 1);
    // One call site, two functions.
    for (int i = 0; i < 30; i++) CHECK(by_pointer[i % 3](i) == i + 1 + (i % 3 == 0));
    for (int i = 0; i < 40; i++) CHECK(pushes(i) == i + 3);
    for (int i = 0; i < 5; i++) CHECK(chain1(i) == i + 3);
    for (int i = 0; i < 6; i++) CHECK(chain2(i) == i + 2);
    for (int i = 0; i < 7; i++) CHECK(chain3(i) == i + 1);
    return 0;
}
