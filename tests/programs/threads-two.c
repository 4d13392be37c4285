// Two threads at once on the same arcs: exact (glibc's mcount loses about half of these).
//# arc: _start -> worker 2
//# arc: worker -> leaf 2000000
//# arc: main -> leaf 1
#include "test.h"
#include <pthread.h>
OPAQUE void leaf(void) { BARRIER(); }
OPAQUE void *worker(void *x) { for (int i = 0; i < 1000000; i++) leaf(); return x; }
int main(void) {
    pthread_t t[2];
    for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, worker, 0);
    leaf();
    for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
    return 0;
}
