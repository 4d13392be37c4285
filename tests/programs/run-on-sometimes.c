// Functions that run on into the next one only sometimes, and otherwise return.
//# arc: main -> maybe 40
//# arc: main -> next 30
//# callgrind: no, behind a branch that is not taken it takes the next function's start for a call
#include "test.h"
ASM_FUNCTION(maybe, "lea 5(%rdi), %eax\n test $1, %edi\n je 1f\n ret\n 1: nop");
ASM_FUNCTION(next, "lea 9(%rdi), %eax\n nop\n nop\n ret");
int maybe(int), next(int);
int main(void) {
    for (int i = 0; i < 40; i++) CHECK(maybe(i) == i + (i % 2 ? 5 : 9));
    for (int i = 0; i < 30; i++) CHECK(next(i) == i + 9);
    return 0;
}
