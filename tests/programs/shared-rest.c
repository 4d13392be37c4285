// Functions that differ in their first instructions and share the rest, as hand-written assembly has them: they jump
// to the second instruction of another one, whose first instruction is shorter than any patch. That is no call.
//# arc: main -> two 10
//# arc: main -> three 20
//# arc: main -> five 30
//# arc: main -> maybe 40
//# arc: main -> far 50
#include "test.h"
ASM_FUNCTION(two, "mov $2, %al\n .Lrest: movzbl %al, %eax\n add %edi, %eax\n ret\n .skip 16, 0x90");
// A short jump, and one of four bytes, among the instructions that are relocated themselves.
ASM_FUNCTION(three, "mov $3, %al\n jmp .Lrest\n nop");
ASM_FUNCTION(five, "mov $5, %al\n jmp.d32 .Lrest");
ASM_FUNCTION(maybe, "mov $7, %al\n test $1, %dil\n jne.d32 .Lrest\n movzbl %al, %eax\n ret");
// Behind all that is ever relocated.
ASM_FUNCTION(far, "mov $9, %al\n .skip 120, 0x90\n jmp.d32 .Lrest");
int two(int), three(int), five(int), maybe(int), far(int);
int main(void) {
    for (int i = 0; i < 10; i++) CHECK(two(i) == i + 2);
    for (int i = 0; i < 20; i++) CHECK(three(i) == i + 3);
    for (int i = 0; i < 30; i++) CHECK(five(i) == i + 5);
    for (int i = 0; i < 40; i++) CHECK(maybe(i) == (i % 2 ? i + 7 : 7));
    for (int i = 0; i < 50; i++) CHECK(far(i) == i + 9);
    return 0;
}
