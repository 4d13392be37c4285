// A timer by timer_create, 10,000 times a second, delivered to one thread, and to threads that it starts.
//# others: allowed
//# arc: main -> two 10000000
//# arc: two -> one 10000000
//# stdout: ok
//# callgrind: no, it starts a call stack of its own for a signal
#define _GNU_SOURCE
#include "test.h"
#include <signal.h>
#include <time.h>
static volatile long ticks, notified;
OPAQUE long leaf(long x) { BARRIER(); return x + 3; }
OPAQUE void tick(int s, siginfo_t *i, void *c) { ticks = leaf(ticks); BARRIER(); }
OPAQUE void notify(union sigval v) { notified = leaf(notified); BARRIER(); }
OPAQUE long one(long x) { BARRIER(); return x + 1; }
OPAQUE long two(long x) { long r = one(x); BARRIER(); return r + 1; }
int main(void) {
    struct sigaction action = {.sa_sigaction = tick, .sa_flags = SA_SIGINFO | SA_RESTART};
    struct sigevent signalled = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 1};
    struct sigevent started = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = notify};
    struct itimerspec often = {{0, 100000}, {0, 100000}}, seldom = {{0, 5000000}, {0, 5000000}};
    timer_t a, b;
    sigaction(SIGRTMIN + 1, &action, 0);
    CHECK(!timer_create(CLOCK_MONOTONIC, &signalled, &a) && !timer_create(CLOCK_MONOTONIC, &started, &b));
    timer_settime(a, 0, &often, 0);
    timer_settime(b, 0, &seldom, 0);
    long r = 0;
    for (int i = 0; i < 10000000; i++) r = two(r);
    timer_delete(a);
    timer_delete(b);
    CHECK(r == 20000000 && ticks > 0);
    printf("ok\n");
    return 0;
}
