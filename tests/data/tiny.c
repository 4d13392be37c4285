// Spends its time in `work`, which calls the very short functions `tiny` (a leaf) and `step` (which might call another one)
// all the time. Under a profiler that counts calls, most of what these two seem to take is the profiler's own time.
// Argument: milliseconds of CPU time.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void (*volatile never)(void);

__attribute__((noipa)) int tiny(int x) { return x + 1; }
__attribute__((noipa)) int step(int x) {
    if (x < 0) never();
    return x + 1;
}

__attribute__((noipa)) int work(int rounds) {
    int sum = 0;
    for (int i = 0; i < rounds; i++) {
        // What follows does not begin before what precedes has ended, so that calls cost their full time.
        __builtin_ia32_lfence();
        for (int k = 0; k < 8; k++) sum = step(tiny(step(sum))) & 0xffff;
        __builtin_ia32_lfence();
        for (int k = 0; k < 300; k++) __asm__ volatile("" : "+r"(k));
    }
    return sum;
}

int main(int argc, char **argv) {
    clock_t end = clock() + (argc > 1 ? atol(argv[1]) : 400) * (CLOCKS_PER_SEC / 1000);
    int sum = 0;
    while (clock() < end) sum += work(20000);
    printf("%d\n", sum > 0);
    return 0;
}
