// pthread_exit in C++: destructors run, a catch-all sees it and must throw it again.
//# arc: _start -> worker 50
//# arc: worker -> down 50
//# arc: down -> leave 50
//# arc: down -> cleaned 50
//# arc: worker -> seen 50
//# arc: worker -> cleaned 50
#include "test.h"
#include <pthread.h>
extern "C" {
static int count;
OPAQUE void cleaned() { count++; }
OPAQUE void seen() { count++; }
struct Guard { __attribute__((always_inline)) ~Guard() { cleaned(); BARRIER(); } };
OPAQUE void leave() { pthread_exit((void *)5); }
OPAQUE void down() { Guard guard; leave(); BARRIER(); }
OPAQUE void *worker(void *x) { Guard guard; try { down(); } catch (...) { seen(); throw; } return x; }
}
int main() {
    for (int i = 0; i < 50; i++) {
        pthread_t t;
        void *result;
        CHECK(!pthread_create(&t, 0, worker, 0) && !pthread_join(t, &result) && result == (void *)5);
    }
    CHECK(count == 150);
    return 0;
}
