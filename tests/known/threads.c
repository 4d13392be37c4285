// Threads: some at the same time, many one after the other, and some that do not return from their functions. Those that are
// cancelled or call pthread_exit leave their frames by unwinding.
#include "known.h"
#include <pthread.h>

static NOINLINE void work(uint64_t ticks, const char *path) { spin(ticks, path); }

static NOINLINE void *worker(void *unused) {
    for (int i = 0; i < 100; i++) work(SHORT, "worker;work");
    spin(20 * SHORT, "worker");
    return unused;
}

static NOINLINE void *brief(void *unused) {
    work(SHORT, "brief;work");
    spin(SHORT, "brief");
    return unused;
}

static NOINLINE void quit(void) {
    spin(SHORT, "quitter;quit");
    pthread_exit(0);
}

static NOINLINE void *quitter(void *unused) {
    spin(4 * SHORT, "quitter");
    quit();
    return unused;
}

static pthread_barrier_t ready;

// The calls of a cancelled thread end when the kernel says so, which cancelled.c is about, so their times are not noted here.
static NOINLINE void be_cancelled(void) {
    spin_only(4 * SHORT);
    pthread_barrier_wait(&ready);
    for (;;) pause();
}

static NOINLINE void *cancelled(void *unused) {
    spin_only(4 * SHORT);
    be_cancelled();
    return unused;
}

int main(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, worker, 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    for (int i = 0; i < 50; i++) {
        for (int j = 0; j < 4; j++) pthread_create(&threads[j], 0, brief, 0);
        for (int j = 0; j < 4; j++) pthread_join(threads[j], 0);
    }
    for (int i = 0; i < 20; i++) {
        pthread_create(&threads[0], 0, quitter, 0);
        pthread_join(threads[0], 0);
    }
    pthread_barrier_init(&ready, 0, 2);
    for (int i = 0; i < 20; i++) {
        pthread_create(&threads[0], 0, cancelled, 0);
        pthread_barrier_wait(&ready);
        pthread_cancel(threads[0]);
        pthread_join(threads[0], 0);
    }
    counts("worker", 4, 4, 0);
    counts("brief", 200, 200, 0);
    counts("work", 600, 600, 0);
    // The first function of a thread takes none of the time in which the thread's memory is made. What it does beside spinning is a part
    // of a microsecond.
    dprintf(1, "within brief 1200\n");
    counts("quitter", 20, 20, 0);
    counts("quit", 20, 20, 0);
    print_spent();
    return 0;
}
