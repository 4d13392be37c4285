// Burns CPU time in two functions, about three parts to one, and prints the exact share of the first in
// percent, by the threads' CPU clocks. Arguments: threads, milliseconds of each.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long limit_ns;
static atomic_long three_ns, one_ns;

static long cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

#define BURN(name) \
    __attribute__((noipa)) void name(long rounds) { \
        for (long i = 0; i < rounds; i++) __asm__ volatile("" : "+r"(i)); \
    }
BURN(burn_three)
BURN(burn_one)

__attribute__((noipa)) void *burn(void *nothing) {
    long now = cpu_ns(), end = now + limit_ns;
    unsigned long random = 1;
    while (now < end) {
        // Bursts of random lengths: with equal ones a timer may fall into step.
        random = random * 6364136223846793005UL + 1442695040888963407UL;
        long rounds = 100000 + (random >> 40) % 200000;
        long start = now;
        burn_three(3 * rounds);
        long middle = cpu_ns();
        burn_one(rounds);
        now = cpu_ns();
        three_ns += middle - start;
        one_ns += now - middle;
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
    printf("%.2f\n", 100.0 * three_ns / (three_ns + one_ns));
    return 0;
}
