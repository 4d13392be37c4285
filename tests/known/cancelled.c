// Threads that end within nested calls, which nobody in the process announces: they are cancelled while they sleep, or make the system
// call that ends a thread. Their calls end with the thread, long before the process does.
#include "known.h"
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>

#define THREADS 4
#define DEPTH 3

static const char *how;
// When each thread was in its last call.
static volatile uint64_t began[THREADS];
static volatile int ready;

static NOINLINE void last(int thread) {
    began[thread] = ticks_now();
    __atomic_fetch_add(&ready, 1, __ATOMIC_SEQ_CST);
    if (!strcmp(how, "raw")) {
        spin_at_the_end(200 * SHORT, "work;nested;nested;nested;last");
        syscall(SYS_exit, 0);
    }
    struct timespec long_time = {3600, 0};
    for (;;) nanosleep(&long_time, 0);
}

static NOINLINE void nested(int thread, int depth) {
    if (depth > 1) nested(thread, depth - 1);
    else last(thread);
    __asm__ volatile("");
}

static NOINLINE void *work(void *thread) {
    nested((int)(intptr_t)thread, DEPTH);
    __asm__ volatile("");
    return 0;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    how = argc > 1 ? argv[1] : "cancel";
    for (intptr_t i = 0; i < THREADS; i++) {
        // One at a time, so that each has a number that no other one has had.
        TIMED("main", {
            if (pthread_create(&threads[i], 0, work, (void *)i)) return 1;
            while (ready <= i) spin_only(SHORT / 10);
            if (!strcmp(how, "cancel")) {
                spin_only(200 * SHORT);
                pthread_cancel(threads[i]);
            }
            pthread_join(threads[i], 0);
        });
        if (!strcmp(how, "cancel")) known_add("work;nested;nested;nested;last", ticks_now() - began[i]);
    }
    // The calls of those threads do not last as long as this.
    spin(2000 * SHORT, "main");
    counts("work", THREADS, THREADS, THREADS);
    counts("nested", DEPTH * THREADS, THREADS, DEPTH * THREADS);
    counts("last", THREADS, THREADS, THREADS);
    print_spent();
    return 0;
}
