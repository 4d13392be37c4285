// Nested functions: the static chain comes in r10, and pointers to them are code on the stack.
//# only: gcc
//# flags: -Wl,-z,execstack
//# arc: main -> outer 1
//# arc: outer -> inner 10
//# arc: outer -> apply 20
//# arc: apply -> inner 20
//# entry-arc: outer -> inner 10
//# entry-arc: apply -> inner 20
//# callgrind: no, the trampoline on the stack is a function of its own to it
#include "test.h"
OPAQUE int apply(int (*f)(int), int x) { int r = f(x); BARRIER(); return r; }
OPAQUE int outer(int base) {
    int calls = 0;
    __attribute__((noipa)) int inner(int x) { calls++; return base + x; }
    for (int i = 0; i < 10; i++) CHECK(inner(i) == base + i);
    for (int i = 0; i < 20; i++) CHECK(apply(inner, i) == base + i);
    return calls;
}
int main(void) { CHECK(outer(1000) == 30); return 0; }
