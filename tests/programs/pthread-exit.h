// Clean-up handlers that call, at the end of frames that die.
//# arc: _start -> worker 50
//# arc: worker -> down 50
//# arc: down -> leave 50
//# arc: leave -> inner_cleanup 50
//# arc: down -> outer_cleanup 50
//# arc: inner_cleanup -> leaf 50
//# arc: outer_cleanup -> leaf 50
//# arc: outer_cleanup -> compare 50
//# entry-arc: _start -> compare 50
#include "test.h"
#include <pthread.h>
#include <stdlib.h>
OPAQUE void leaf(void) { BARRIER(); }
OPAQUE int compare(const void *a, const void *b) { BARRIER(); return *(int *)a - *(int *)b; }
OPAQUE void inner_cleanup(void *x) { leaf(); BARRIER(); }
OPAQUE void outer_cleanup(void *x) { int v[2] = {2, 1}; leaf(); qsort(v, 2, sizeof *v, compare); ++*(int *)x; }
OPAQUE void leave(void) {
    pthread_cleanup_push(inner_cleanup, 0);
    pthread_exit((void *)5);
    pthread_cleanup_pop(0);
}
OPAQUE void down(int *done) {
    pthread_cleanup_push(outer_cleanup, done);
    leave();
    pthread_cleanup_pop(0);
}
OPAQUE void *worker(void *x) { down(x); BARRIER(); return x; }
int main(void) {
    int done = 0;
    for (int i = 0; i < 50; i++) {
        pthread_t t;
        void *result;
        CHECK(!pthread_create(&t, 0, worker, &done) && !pthread_join(t, &result) && result == (void *)5);
    }
    CHECK(done == 50);
    return 0;
}
