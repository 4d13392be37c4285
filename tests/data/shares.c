// Burns CPU time in two functions, three parts to one. Arguments: threads, milliseconds of each.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long limit_ns;

static long cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

// The same instructions in both, so that a round costs the same; the rounds are 3 : 1.
#define BURN(name, rounds) \
    __attribute__((noipa)) void name(void) { \
        for (long i = 0; i < (rounds) * 20000L; i++) __asm__ volatile("" : "+r"(i)); \
    }
BURN(burn_three, 3)
BURN(burn_one, 1)

__attribute__((noipa)) void *burn(void *nothing) {
    long end = cpu_ns() + limit_ns;
    while (cpu_ns() < end) {
        burn_three();
        burn_one();
    }
    return nothing;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    limit_ns = (argc > 2 ? atol(argv[2]) : 1000) * 1000000L;
    pthread_t others[64];
    for (int i = 1; i < threads && i < 64; i++) pthread_create(&others[i], 0, burn, 0);
    burn(0);
    for (int i = 1; i < threads && i < 64; i++) pthread_join(others[i], 0);
    return 0;
}
