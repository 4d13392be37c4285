// A handler on a distant stack, 10,000 times a second, at any instruction of a thunk.
//# arc: main -> two 10000000
//# arc: two -> one 10000000
//# others: allowed
//# callgrind: no, it starts a call stack of its own for a signal
#include "test.h"
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
static volatile long hits;
OPAQUE long leaf(long x) { BARRIER(); return x + 3; }
OPAQUE void handler(int s) { hits = leaf(hits); BARRIER(); }
OPAQUE long one(long x) { BARRIER(); return x + 1; }
OPAQUE long two(long x) { long r = one(x); BARRIER(); return r + 1; }
int main(void) {
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(&stack, 0);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, 0);
    long r = 0;
    for (int i = 0; i < 10000000; i++) r = two(r);
    setitimer(ITIMER_REAL, &never, 0);
    CHECK(r == 20000000);
    return 0;
}
