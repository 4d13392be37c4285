// Control runs on through more functions than a thunk can tell apart, from any of them; some of them jump to others as well.
//# hooks: both
//# arc: main -> f1 3
//# arc: main -> f5 4
//# arc: main -> f12 5
//# arc: main -> jumps 20
//# arc: jumps -> last 10
//# arc: main -> last 7
//# callgrind: no, behind a branch that is not taken it takes the next function's start for a call
#include "test.h"
#define ADD(name) ASM_FUNCTION(name, "lea 1(%rdi), %edi\n nop\n nop\n nop")
ADD(f1);
ADD(f2);
ADD(f3);
ADD(f4);
ADD(f5);
ADD(f6);
ADD(f7);
ADD(f8);
ADD(f9);
ADD(f10);
ADD(f11);
ASM_FUNCTION(f12, "lea 1(%rdi), %eax\n nop\n nop\n ret");
// A jump to the next function is a tail call, and running on into it is none. (A jump of two bytes could not be told from that.)
ASM_FUNCTION(jumps, "test $1, %edi\n .byte 0x0f, 0x85\n .long last - . - 4\n lea 2(%rdi), %edi\n nop");
ASM_FUNCTION(last, "lea 1(%rdi), %eax\n nop\n nop\n ret");
int f1(int), f5(int), f12(int), jumps(int), last(int);
// Nothing but running on reaches the others if their addresses are not taken.
int f2(int), f3(int), f4(int), f6(int), f7(int), f8(int), f9(int), f10(int), f11(int);
int (*volatile others[])(int) = {f2, f3, f4, f6, f7, f8, f9, f10, f11};
int main(void) {
    for (int i = 0; i < 3; i++) CHECK(f1(i) == i + 12);
    for (int i = 0; i < 4; i++) CHECK(f5(i) == i + 8);
    for (int i = 0; i < 5; i++) CHECK(f12(i) == i + 1);
    for (int i = 0; i < 20; i++) CHECK(jumps(i) == i + (i % 2 ? 1 : 3));
    for (int i = 0; i < 7; i++) CHECK(last(i) == i + 1);
    return 0;
}
