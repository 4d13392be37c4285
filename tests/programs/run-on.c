// A function that runs on into the next one: the same as a tail call.
//# arc: main -> first 20
//# arc: first -> second 20
//# arc: main -> second 30
//# entry-arc: main -> second 50
//# callgrind: no, it sees no call without a branch
#include "test.h"
ASM_FUNCTION(first, "add $1, %edi\n nop\n nop");
ASM_FUNCTION(second, "mov %edi, %eax\n add $1, %eax\n ret");
int first(int), second(int);
int main(void) {
    for (int i = 0; i < 20; i++) CHECK(first(i) == i + 2);
    for (int i = 0; i < 30; i++) CHECK(second(i) == i + 1);
    return 0;
}
