// A thread switches between coroutines that share a stack by code of its own, all the time. The numbers on standard input are numbers
// of calls of `step`. With an argument, the thread does so once: it begins after the first call, and goes on after the second one while
// frames are copied away.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
#include "obey.h"
#include "../programs/test.h"

static volatile int stop, sink, is_slow;

static void wait_for(int calls) {
    while (is_slow && sink < calls) usleep(100);
}

#define AFTER_ROUND(round) if (round == 0) wait_for(2)
#include "../programs/shared-stack.h"

OPAQUE void step(void) { sink++; }

static void *switches(void *argument) {
    wait_for(1);
    do run_all(); while (!stop && !is_slow);
    return argument;
}

int main(int count, char **arguments) {
    is_slow = count > 1;
    pthread_t thread;
    CHECK(!pthread_create(&thread, 0, switches, 0));
    OBEY();
    stop = 1;
    CHECK(!pthread_join(thread, 0));
    puts("the end");
    return 0;
}
