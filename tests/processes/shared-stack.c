// A thread switches between coroutines that share a stack by code of its own, all the time. The numbers on standard input are numbers
// of calls of `step`.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include "obey.h"
#include "../programs/test.h"
#include "../programs/shared-stack.h"

static volatile int stop, sink;

OPAQUE void step(void) { sink++; }

static void *switches(void *argument) {
    while (!stop) run_all();
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
