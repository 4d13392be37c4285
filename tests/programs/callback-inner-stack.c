// A coroutine on a stack that is a local variable of main, resumed from frames below it. Its last call says nothing about
// the stack around it. (Its first function is charged to the frame around the stack.)
//# not: musl
//# arc: main -> deeper 50
//# arc: deeper -> compare 50
//# arc: main -> coroutine 1
//# arc: coroutine -> step 50
//# arc: step -> nothing 50
//# hooks: both
//# callgrind: no, it does not follow stacks that are switched
#include "test.h"
#include <stdlib.h>
#include <ucontext.h>
static ucontext_t outside, inside;
void *(*volatile search)(const void *, const void *, size_t, size_t, int (*)(const void *, const void *)) = bsearch;
OPAQUE void nothing(void) { BARRIER(); }
OPAQUE void step(void) { nothing(); BARRIER(); }
OPAQUE int compare(const void *a, const void *b) { BARRIER(); return *(int *)a - *(int *)b; }
OPAQUE void coroutine(void) {
    for (;;) {
        swapcontext(&inside, &outside);
        step();
    }
}
OPAQUE void deeper(void) {
    int v = 5;
    swapcontext(&outside, &inside);
    CHECK(search(&v, &v, 1, sizeof v, compare) == &v);
    BARRIER();
}
int main(void) {
    char stack[100000];
    getcontext(&inside);
    inside.uc_stack.ss_sp = stack;
    inside.uc_stack.ss_size = sizeof stack;
    makecontext(&inside, coroutine, 0);
    swapcontext(&outside, &inside);
    for (int i = 0; i < 50; i++) deeper();
    return 0;
}
