// Coroutines by swapcontext that are resumed on other threads: their frames move with them.
//# not: musl
//# others: allowed
//# arc: _start -> body 8
//# arc: body -> work 800
//# arc: work -> deeper 800
//# arc: deeper -> deeper 4000
//# arc: deeper -> yield 800
//# arc: _start -> worker 20
//# stdout: ok
//# callgrind: no, it does not follow stacks that are switched
#define _GNU_SOURCE
#include "test.h"
#include <pthread.h>
#include <stdlib.h>
#include <ucontext.h>
#define N 8
static ucontext_t each[N], *back[N];
static int sum[N], ended[N];
// Never inlined nor cached across: the thread changes within.
OPAQUE void yield(int id) { swapcontext(&each[id], back[id]); BARRIER(); }
OPAQUE int deeper(int id, int d) {
    if (d == 0) { yield(id); return 1; }
    int r = deeper(id, d - 1) + 1;
    BARRIER();
    return r;
}
OPAQUE void work(int id) { sum[id] += deeper(id, 5); }
OPAQUE void body(int id) { for (int i = 0; i < 100; i++) work(id); ended[id] = 1; setcontext(back[id]); }
OPAQUE void resume(int id) {
    if (ended[id]) return;
    ucontext_t here;
    back[id] = &here;
    swapcontext(&here, &each[id]);
    BARRIER();
}
OPAQUE void *worker(void *x) {
    // Two coroutines at a time, in turns, on each new thread.
    long first = (long)x;
    for (int i = 0; i < 21; i++) { resume(first); resume(first + 1); }
    return x;
}
int main(void) {
    for (int i = 0; i < N; i++) {
        getcontext(&each[i]);
        each[i].uc_stack.ss_sp = malloc(65536);
        each[i].uc_stack.ss_size = 65536;
        makecontext(&each[i], (void (*)(void))body, 1, i);
    }
    // 5 * 21 resumptions: 100 to yield, one to end, and the rest find it ended.
    for (int round = 0; round < 5; round++) {
        pthread_t t[N / 2];
        for (long i = 0; i < N / 2; i++) CHECK(!pthread_create(&t[i], 0, worker, (void *)(2 * i)));
        for (int i = 0; i < N / 2; i++) pthread_join(t[i], 0);
    }
    for (int i = 0; i < N; i++) CHECK(ended[i] && sum[i] == 600);
    printf("ok\n");
    return 0;
}
