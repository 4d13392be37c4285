// 64 threads at once, and detached ones that still run when the program ends.
//# others: allowed
//# arc: _start -> worker 64
//# arc: worker -> two 640000
//# arc: two -> one 640000
//# arc: _start -> endless 8
//# arc: endless -> started 8
#include "test.h"
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
static atomic_int running;
static pthread_barrier_t all;
OPAQUE long one(long x) { BARRIER(); return x + 1; }
OPAQUE long two(long x) { long r = one(x); BARRIER(); return r; }
OPAQUE void *worker(void *x) {
    long n = 0;
    pthread_barrier_wait(&all);
    for (int i = 0; i < 10000; i++) n = two(n);
    return (void *)n;
}
OPAQUE void started(void) { running++; }
OPAQUE void *endless(void *x) { started(); for (;;) pause(); }
int main(void) {
    pthread_t t[64], d;
    void *n;
    pthread_barrier_init(&all, 0, 64);
    for (int i = 0; i < 64; i++) CHECK(!pthread_create(&t[i], 0, worker, 0));
    for (int i = 0; i < 64; i++) CHECK(!pthread_join(t[i], &n) && n == (void *)10000);
    for (int i = 0; i < 8; i++) CHECK(!pthread_create(&d, 0, endless, 0) && !pthread_detach(d));
    while (running < 8) usleep(100);
    return 0;
}
