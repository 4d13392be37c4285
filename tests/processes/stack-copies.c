// A thread switches between coroutines that share its stack, all the time. The numbers on standard input are numbers of calls of `step`.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "obey.h"
#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %m\n", __LINE__, #what); abort(); } } while (0)
#define OPAQUE __attribute__((noinline, noclone))
#define BARRIER() __asm__ volatile("" ::: "memory")
#include "../programs/stack-copies.h"

static volatile int stop, sink;

OPAQUE void step(void) { sink++; }

static void *switches(void *argument) {
    while (!stop) run_all(__builtin_frame_address(0));
    return argument;
}

int main(void) {
    pthread_t thread;
    CHECK(!pthread_create(&thread, 0, switches, 0));
    OBEY();
    stop = 1;
    CHECK(!pthread_join(thread, 0));
    puts("the end");
    return 0;
}
