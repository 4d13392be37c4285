// A recursion five million frames deep, across several regions of the shadow, and an exit from its bottom.
//# others: allowed
//# arc: _start -> thread 1
//# arc: thread -> down 2
//# arc: down -> down 10000000
//# arc: down -> sort 1
//# arc: sort -> compare 1
//# entry-arc: _start -> compare 1
//# callgrind: no, its own stack ends before
#include "test.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
static jmp_buf there;
OPAQUE int compare(const void *a, const void *b) { longjmp(there, 1); }
OPAQUE long sort(void) { int v[2] = {2, 1}; qsort(v, 2, sizeof *v, compare); return v[0]; }
OPAQUE long down(long n, int jump) { long r = n ? down(n - 1, jump) : jump ? sort() : 0; BARRIER(); return r + 1; }
OPAQUE void *thread(void *x) {
    CHECK(down(5000000, 0) == 5000001);
    if (!setjmp(there)) down(5000000, 1);
    return x;
}
int main(void) {
    pthread_attr_t a;
    pthread_t t;
    pthread_attr_init(&a);
    CHECK(!pthread_attr_setstacksize(&a, 1 << 30) && !pthread_create(&t, &a, thread, 0));
    pthread_join(t, 0);
    return 0;
}
