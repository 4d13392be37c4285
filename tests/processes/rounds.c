// Reads commands from standard input: "go N" calls mid N times, and leaf three times as often; "load T S" makes T threads
// do so for S seconds.
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#define OPAQUE __attribute__((noinline, noclone))
OPAQUE void leaf(void) { __asm__ volatile("" ::: "memory"); }
OPAQUE void mid(void) {
    leaf();
    leaf();
    leaf();
    __asm__ volatile("" ::: "memory");
}
static double seconds;
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
static void *work(void *argument) {
    double end = now() + seconds;
    while (now() < end)
        for (int i = 0; i < 1000; i++) mid();
    return argument;
}
int main(void) {
    char line[100];
    long n;
    int threads;
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "go %ld", &n) == 1) {
            while (n-- > 0) mid();
        } else if (sscanf(line, "load %d %lf", &threads, &seconds) == 2) {
            pthread_t thread[64];
            for (int i = 0; i < threads && i < 64; i++) pthread_create(&thread[i], 0, work, 0);
            for (int i = 0; i < threads && i < 64; i++) pthread_join(thread[i], 0);
        }
        puts("done");
        fflush(stdout);
    }
    return 3;
}
