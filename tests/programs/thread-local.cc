// Destructors of thread-local objects, which make calls: no function of the program calls them.
//# others: allowed
//# arc: _start -> worker 40
//# arc: worker -> touch 40
//# arc: main -> touch 1
//# arc: _start -> _ZN5LocalD1Ev 41
//# arc: _ZN5LocalD1Ev -> leaf 41
//# arc: _ZN5LocalD1Ev -> thrower 41
//# arc: _ZN5LocalD1Ev -> compare 41
//# entry-arc: _start -> compare 41
#include "test.h"
#include <pthread.h>
#include <stdlib.h>
extern "C" {
OPAQUE void leaf() { BARRIER(); }
OPAQUE void thrower() { throw 1; }
OPAQUE int compare(const void *a, const void *b) { BARRIER(); return *(int *)a - *(int *)b; }
struct Local { int x; OPAQUE ~Local(); };
Local::~Local() {
    int v[2] = {2, 1};
    leaf();
    try { thrower(); } catch (int) { qsort(v, 2, sizeof *v, compare); }
    BARRIER();
}
thread_local Local local;
OPAQUE void touch() { local.x++; }
OPAQUE void *worker(void *x) { touch(); if (x) pthread_exit(x); return x; }
}
int main() {
    for (long i = 0; i < 40; i++) {
        pthread_t t;
        CHECK(!pthread_create(&t, 0, worker, (void *)(i & 1)) && !pthread_join(t, 0));
    }
    touch();
    return 0;
}
