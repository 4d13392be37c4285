// Threads on the smallest stacks, with calls, callbacks and exits.
//# not: musl
//# others: allowed
//# arc: _start -> worker 200
//# arc: worker -> two 2000
//# arc: two -> one 2000
//# arc: worker -> compare 200
//# entry-arc: _start -> compare 200
//# arc: worker -> leave 100
#include "test.h"
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
OPAQUE int compare(const void *a, const void *b) { BARRIER(); return *(int *)a - *(int *)b; }
OPAQUE int one(int x) { BARRIER(); return x + 1; }
OPAQUE int two(int x) { int r = one(x); BARRIER(); return r; }
OPAQUE void leave(void *x) { pthread_exit(x); }
OPAQUE void *worker(void *x) {
    int n = 0, v[2] = {2, 1};
    for (int i = 0; i < 10; i++) n = two(n);
    qsort(v, 2, sizeof *v, compare);
    CHECK(n == 10 && v[0] == 1);
    if (x) leave(x);
    return x;
}
int main(void) {
    pthread_attr_t a;
    pthread_attr_init(&a);
    // pthread_exit alone loads and runs an unwinder, which takes more than the least.
    for (long i = 0; i < 200; i++) {
        pthread_t t;
        CHECK(!pthread_attr_setstacksize(&a, PTHREAD_STACK_MIN + (i & 1 ? 16384 : 0)));
        CHECK(!pthread_create(&t, &a, worker, (void *)(i & 1)) && !pthread_join(t, 0));
    }
    return 0;
}
