// Functions that take from one nanosecond to a few microseconds. What they take without hooks is measured with their loops in
// place, many at a time. The mean of the rounds counts, without those that took more than twice as long as the quickest: these
// were stopped for something else. The timer interrupts of the kernel, which the calls meet as well, remain in it.
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
        static uint64_t took[ROUNDS]; \
        uint64_t least = -1ul, sum = 0, rounds = 0; \
        for (int round = 0; round < ROUNDS; round++) { \
            uint64_t start = ticks_now(); \
            for (int i = 0; i < (calls); i++) LOOP(n); \
            took[round] = ticks_now() - start; \
            if (took[round] < least) least = took[round]; \
        } \
        for (int round = 0; round < ROUNDS; round++) \
            if (took[round] < 2 * least) sum += took[round], rounds++; \
        for (int round = 0; round < ROUNDS; round++) round_##n(); \
        counts("sized_" #n, (uint64_t)ROUNDS * (calls), (uint64_t)ROUNDS * (calls), 0); \
        known_add("round_" #n ";sized_" #n, sum / rounds * ROUNDS); \
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
