// Sleeping and spinning take wall time alike, but only one of them takes CPU time: in functions of one thread, and in threads.
#include "known.h"
#include <pthread.h>
#include <time.h>

static NOINLINE void nap(void) {
    struct timespec ms20 = {0, 20000000};
    TIMED("main;nap", nanosleep(&ms20, 0));
}

static NOINLINE void burn(void) { spin(SHORT * 1000, "main;burn"); }

static NOINLINE void *sleeper(void *unused) {
    struct timespec ms200 = {0, 200000000};
    TIMED("sleeper", nanosleep(&ms200, 0));
    return unused;
}

// Returns the CPU time of this thread by the kernel.
INLINE uint64_t cpu_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static uint64_t spinner_ns;

// A part of its time is in a function that is not hooked.
static NOINLINE void *spinner(void *unused) {
    static uint64_t numbers[1 << 16];
    uint64_t start = known_begin();
    do {
        spin_only(SHORT * 20);
        for (unsigned i = 0; i < 80; i++) memset(numbers, i, sizeof numbers);
    } while (cpu_ns() < 150000000);
    known_add("spinner", known_end() - start);
    spinner_ns = cpu_ns();
    return unused;
}

int main(void) {
    pthread_t threads[2];
    TIMED("main", pthread_create(&threads[0], 0, sleeper, 0); pthread_join(threads[0], 0));
    TIMED("main", pthread_create(&threads[1], 0, spinner, 0); pthread_join(threads[1], 0));
    for (int i = 0; i < 10; i++) nap(), burn();
    counts("nap", 10, 10, 0);
    counts("burn", 10, 10, 0);
    counts("sleeper", 1, 1, 0);
    counts("spinner", 1, 1, 0);
    dprintf(1, "cpu spinner %lu\n", spinner_ns);
    print_spent();
    return 0;
}
