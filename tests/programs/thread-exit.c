// Threads that end by pthread_exit, some frames down.
//# arc: _start -> worker 20
//# arc: worker -> down 20
//# arc: down -> leave 20
#include "test.h"
#include <pthread.h>
OPAQUE void leave(void) { pthread_exit((void *)5); }
OPAQUE void down(void) { leave(); BARRIER(); }
OPAQUE void *worker(void *x) { down(); BARRIER(); return x; }
int main(void) {
    for (int i = 0; i < 20; i++) {
        pthread_t t;
        void *result;
        pthread_create(&t, 0, worker, 0);
        pthread_join(t, &result);
        CHECK(result == (void *)5);
    }
    return 0;
}
