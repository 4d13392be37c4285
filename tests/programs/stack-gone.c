// Stacks that are unmapped with frames on them, and others just below: no frames are searched there.
//# arc: deep -> deep 20
//# arc: a -> deep 1
//# arc: b -> leaf 1
//# others: allowed
//# callgrind: no, it does not follow threads that leave by pthread_exit
//# flags: -pthread
#include "test.h"
#include <pthread.h>
#include <sys/mman.h>
#define SIZE (128 << 10)
OPAQUE int deep(int d) {
    if (d == 0) pthread_exit(0);
    int r = deep(d - 1) + 1;
    BARRIER();
    return r;
}
OPAQUE int leaf(int x) { BARRIER(); return x + 1; }
OPAQUE void *a(void *x) { int r = deep(20); BARRIER(); return (void *)(long)r; }
OPAQUE void *b(void *x) { int r = leaf(1); BARRIER(); return (void *)(long)r; }
static void run(void *(*f)(void *), char *stack) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, SIZE);
    CHECK(pthread_create(&thread, &attributes, f, 0) == 0);
    pthread_join(thread, 0);
}
int main(void) {
    char *m = mmap(0, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    run(a, m + SIZE);
    munmap(m + SIZE, SIZE);
    run(b, m);
    return 0;
}
