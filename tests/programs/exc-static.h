// Throws, catches, and ends threads by pthread_exit, with callbacks of a library after each.
//# others: allowed
//# arc: main -> attempt 200
//# arc: attempt -> middle 200
//# arc: middle -> thrower 200
//# arc: middle -> cleaned 200
//# arc: attempt -> caught 200
//# arc: attempt -> compare 200
//# arc: main -> compare 200
//# entry-arc: _start -> compare 400
//# arc: _start -> worker 20
//# arc: worker -> leave 20
//# arc: worker -> cleaned 20
#include "test.h"
#include <pthread.h>
#include <stdlib.h>
extern "C" {
static int count;
OPAQUE void cleaned() { count++; }
OPAQUE int caught(int x) { BARRIER(); return x; }
OPAQUE void thrower(int x) { if (x) throw x; BARRIER(); }
OPAQUE int compare(const void *a, const void *b) { BARRIER(); return *(int *)a - *(int *)b; }
struct Guard { __attribute__((always_inline)) ~Guard() { cleaned(); BARRIER(); } };
OPAQUE void middle(int x) { Guard guard; thrower(x); BARRIER(); }
OPAQUE int attempt(int x) {
    int r = 0, v[2] = {2, 1};
    try { middle(x); } catch (int y) { r = caught(y); }
    qsort(v, 2, sizeof *v, compare);
    return r;
}
OPAQUE void leave() { pthread_exit((void *)5); }
OPAQUE void *worker(void *) { Guard guard; leave(); return 0; }
}
int main() {
    for (int i = 1; i <= 200; i++) {
        int v[2] = {2, 1};
        CHECK(attempt(i) == i);
        qsort(v, 2, sizeof *v, compare);
    }
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        void *result;
        CHECK(!pthread_create(&thread, 0, worker, 0) && !pthread_join(thread, &result) && result == (void *)5);
    }
    CHECK(count == 220);
    return 0;
}
