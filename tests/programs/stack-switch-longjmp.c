// Coroutines that switch by sigsetjmp and siglongjmp: a frame that a jump leaves is still alive.
//# not: musl
//# arc: _start -> body 4
//# arc: body -> step 400
//# others: allowed
//# callgrind: no, it does not follow stacks that are switched
#include "test.h"
#include <setjmp.h>
#include <stdlib.h>
#include <ucontext.h>
#define N 4
static ucontext_t start, each[N];
static sigjmp_buf jumps[N], back;
static volatile long sum;
OPAQUE void pass_on(int id) { if (!sigsetjmp(jumps[id], 0)) siglongjmp(jumps[(id + 1) % N], 1); BARRIER(); }
OPAQUE int deeper(int id, int d) {
    if (d == 0) { pass_on(id); return 1; }
    int r = deeper(id, d - 1) + 1;
    sum += r;
    return r;
}
OPAQUE void step(int id) { deeper(id, 5); BARRIER(); }
OPAQUE void body(int id) {
    if (!sigsetjmp(jumps[id], 0)) setcontext(&start);
    for (volatile int i = 0; i < 100; i++) step(id);
    siglongjmp(back, 1);
}
int main(void) {
    for (volatile int i = 0; i < N; i++) {
        getcontext(&each[i]);
        each[i].uc_stack.ss_sp = malloc(65536);
        each[i].uc_stack.ss_size = 65536;
        makecontext(&each[i], (void (*)(void))body, 1, i);
        swapcontext(&start, &each[i]);
    }
    if (!sigsetjmp(back, 0)) siglongjmp(jumps[0], 1);
    CHECK(sum == 7940);
    return 0;
}
