// A recursion a million frames deep.
//# arc: main -> run 1
//# arc: _start -> thread 1
//# arc: thread -> down 1
//# arc: down -> down 1000000
#include "test.h"
#include <pthread.h>
OPAQUE long down(long n) { long r = n ? down(n - 1) : 0; BARRIER(); return r + 1; }
OPAQUE void *thread(void *x) { CHECK(down(1000000) == 1000001); return x; }
OPAQUE void run(void) {
    pthread_attr_t a;
    pthread_t t;
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, 256 << 20);
    CHECK(!pthread_create(&t, &a, thread, 0));
    pthread_join(t, 0);
}
int main(void) { run(); return 0; }
