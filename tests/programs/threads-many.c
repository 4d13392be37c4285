// Hundreds of threads in groups, some of them detached, each of which works until its end.
//# arc: _start -> worker 600
//# arc: worker -> leaf 60000
//# arc: _start -> last 600
//# arc: last -> leaf 600
//# stdout: 60600
#include "test.h"
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
static pthread_key_t key;
static atomic_int calls, finished;
OPAQUE void leaf(void) { atomic_fetch_add(&calls, 1); }
// A key's destructor: libc calls it when the thread is nearly gone.
OPAQUE void last(void *x) { leaf(); atomic_fetch_add(&finished, 1); }
OPAQUE void *worker(void *x) {
    pthread_setspecific(key, &key);
    for (int i = 0; i < 100; i++) leaf();
    return 0;
}
int main(void) {
    pthread_key_create(&key, last);
    for (int wave = 0; wave < 3; wave++) {
        pthread_t t[200];
        for (int i = 0; i < 200; i++) {
            CHECK(!pthread_create(&t[i], 0, worker, 0));
            if (i & 1) pthread_detach(t[i]);
        }
        for (int i = 0; i < 200; i += 2) pthread_join(t[i], 0);
        while (finished < 200 * (wave + 1)) usleep(1000);
    }
    printf("%d\n", calls);
    return 0;
}
