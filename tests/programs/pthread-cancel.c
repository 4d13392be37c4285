// Cancellation, deferred: in a system call and at a test; asynchronous: anywhere in a loop of calls.
//# others: allowed
//# arc: _start -> waiter 30
//# arc: waiter -> wait 30
//# arc: _start -> tester 30
//# arc: _start -> looper 30
//# arc: released -> last 90
//# arc: main -> stop 90
//# callgrind: no, it does not follow cancelled threads
#include "test.h"
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
static atomic_int ready, done;
OPAQUE void last(void) { done++; }
OPAQUE void released(void *x) { last(); BARRIER(); }
OPAQUE void wait(void) { ready = 1; for (;;) pause(); }
OPAQUE void *waiter(void *x) { pthread_cleanup_push(released, 0); wait(); pthread_cleanup_pop(0); return x; }
OPAQUE void test(void) { pthread_testcancel(); BARRIER(); }
OPAQUE void *tester(void *x) {
    pthread_cleanup_push(released, 0);
    for (;;) { ready = 1; test(); }
    pthread_cleanup_pop(0);
    return x;
}
OPAQUE int one(int x) { BARRIER(); return x + 1; }
OPAQUE int two(int x) { int r = one(x); BARRIER(); return r; }
OPAQUE void *looper(void *x) {
    int old, n = 0;
    pthread_cleanup_push(released, 0);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
    for (;;) { ready = 1; n = two(n); }
    pthread_cleanup_pop(0);
    return x;
}
OPAQUE void stop(void *(*f)(void *)) {
    pthread_t t;
    void *result;
    ready = 0;
    CHECK(!pthread_create(&t, 0, f, 0));
    while (!ready) usleep(100);
    usleep(200);
    CHECK(!pthread_cancel(t) && !pthread_join(t, &result) && result == PTHREAD_CANCELED);
}
int main(void) {
    for (int i = 0; i < 30; i++) { stop(waiter); stop(tester); stop(looper); }
    CHECK(done == 90);
    return 0;
}
