// Functions that take from one nanosecond to a few microseconds. What they take without a profiler is measured with their loops
// in place, many at a time, of which the quickest round counts. The functions are called in rounds as well, and a round that
// was interrupted is known by its duration.
#include "known.h"

#define ROUNDS 400

#define LOOP(n) do { \
        uint64_t i_ = (n); \
        __asm__ volatile("1: dec %0; jnz 1b" : "+r"(i_)); \
    } while (0)

#define SIZED(n, calls) \
    static NOINLINE void sized_##n(void) { LOOP(n); } \
    static NOINLINE void round_##n(void) { for (int i = 0; i < (calls); i++) sized_##n(); } \
    INLINE void all_##n(void) { \
        uint64_t least = -1ul, start, took; \
        for (int round = 0; round < ROUNDS; round++) { \
            start = ticks_now(); \
            for (int i = 0; i < (calls); i++) LOOP(n); \
            took = ticks_now() - start; \
            if (took < least) least = took; \
        } \
        for (int round = 0; round < ROUNDS; round++) round_##n(); \
        counts("sized_" #n, (uint64_t)ROUNDS * (calls), (uint64_t)ROUNDS * (calls), 0); \
        known_add("main;round_" #n ";sized_" #n, least * ROUNDS); \
    }

SIZED(1, 1000)
SIZED(10, 1000)
SIZED(30, 1000)
SIZED(100, 1000)
SIZED(300, 500)
SIZED(1000, 200)
SIZED(3000, 100)
SIZED(10000, 30)

int main(void) {
    // Until the processor runs at its full speed.
    spin_only(100000000);
    all_1();
    all_10();
    all_30();
    all_100();
    all_300();
    all_1000();
    all_3000();
    all_10000();
    print_spent();
    return 0;
}
