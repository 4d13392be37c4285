// A program to attach to, with two busy threads. It reads commands as attached.cc does.
#include <pthread.h>
#include <unistd.h>
#include "obey.h"
#define OPAQUE __attribute__((noinline, noclone))
static volatile int stop, sink;
OPAQUE void step(void) { sink++; }
OPAQUE int inner(int x) { return x + 1; }
OPAQUE int outer(int x) { return inner(inner(x)); }
static void *work(void *argument) {
    int n = 0;
    while (!stop) n = outer(n) & 0xffff;
    return argument;
}
int main(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, work, 0);
    OBEY();
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    puts("the end");
    return 0;
}
