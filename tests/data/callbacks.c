// Calls from code that is not hooked: libc calls functions of the program, with some stack in between. Prints what each
// kind of call takes, in nanoseconds of CPU time, and the seconds of a qsort.
//
// leaf: the function that is called back calls nothing. exit: it may call another one, and so has an exit hook, but does not.
// frame: it makes three direct calls. mixed: its caller calls it directly each time before libc does.
#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#define OPAQUE __attribute__((noipa))

OPAQUE int helper(int x) { return x; }
OPAQUE int leaf(const void *a, const void *b) { return (*(int *)a > *(int *)b) - (*(int *)a < *(int *)b); }
OPAQUE int exits(const void *a, const void *b) { return *(int *)a == *(int *)b ? 0 : helper(*(int *)a) + 1; }
OPAQUE int frame(const void *a, const void *b) { return helper(leaf(a, b)) + 0 * helper(1); }

typedef int Compare(const void *, const void *);
// Through a pointer: the header's own bsearch would be inlined, and would call from the program's own code.
static void *(*volatile search)(const void *, const void *, size_t, size_t, Compare *) = bsearch;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

OPAQUE void call_back(const char *what, size_t between, Compare *compare, int mixed, int times) {
    volatile char *room = alloca(between);
    room[0] = 1;
    int here = 5, key = 5;
    double begin = now();
    for (int i = 0; i < times; i++) {
        if (mixed) compare(&key, &here);
        search(&key, &here, 1, sizeof here, compare);
    }
    printf("%s %zu %.1f\n", what, between, (now() - begin) / times);
}

OPAQUE void sort(const char *what, Compare *compare) {
    enum { N = 300000 };
    static int numbers[N];
    srand(1);
    for (int i = 0; i < N; i++) numbers[i] = rand();
    double begin = now();
    qsort(numbers, N, sizeof *numbers, compare);
    printf("%s %d %.3f\n", what, N, (now() - begin) / 1e9);
}

int main(int argc, char **argv) {
    int times = argc > 1 ? atoi(argv[1]) : 20000;
    static const size_t BETWEEN[] = {64, 4096, 65536, 524288, 4194304};
    for (unsigned i = 0; i < sizeof BETWEEN / sizeof *BETWEEN; i++) {
        call_back("leaf", BETWEEN[i], leaf, 0, times);
        call_back("exit", BETWEEN[i], exits, 0, times);
        call_back("frame", BETWEEN[i], frame, 0, times);
        call_back("mixed", BETWEEN[i], frame, 1, times);
    }
    sort("qsort-leaf", leaf);
    sort("qsort-frame", frame);
    return 0;
}
