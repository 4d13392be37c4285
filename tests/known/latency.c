// Functions whose time is that of a chain of operations, each of which needs the result of the one before: divisions,
// multiplications, a sum of squares, loads. The processor reads its clock, and returns, while such a chain is still being
// executed. Each call continues the chain of the call before, so that what the calls take by themselves is what a loop of them takes
// without hooks. That is measured as in short.c.
#include "known.h"

#define ROUNDS 8

static double numbers[128];
struct link { struct link *next; char rest[56]; };
static struct link ring[256];

#define DIVIDE(n, x) for (int i_ = 0; i_ < (n); i_++) __asm__ volatile("divsd %1, %0" : "+x"(x) : "x"(1.0000001))
#define MULTIPLY(n, x) do { \
        uint64_t i_ = (n); \
        __asm__ volatile("1: imul %0, %0\n\tdec %1\n\tjnz 1b" : "+r"(x), "+r"(i_)); \
    } while (0)
#define ADD_SQUARES(n, x) for (int i_ = 0; i_ < (n); i_++) do { \
        double number_ = numbers[i_]; \
        __asm__ volatile("" : "+x"(number_)); \
        x += number_ * number_; \
    } while (0)
#define FOLLOW(n, x) for (int i_ = 0; i_ < (n); i_++) __asm__ volatile("mov (%0), %0" : "+r"(x))

// Nanoseconds by which the mean of a function's calls may differ from the known time.
#define WITHIN 10

// `where` is the kind of register that has the result of each step.
#define CHAIN(name, type, where, first, calls, step, n) \
    static NOINLINE type name(type x) { step(n, x); return x; } \
    static NOINLINE type round_##name(type x) { for (int i = 0; i < (calls); i++) x = name(x); return x; } \
    INLINE void all_##name(void) { \
        static uint64_t took[ROUNDS]; \
        uint64_t least = -1ul, sum = 0, rounds = 0; \
        type x = first; \
        for (int round = 0; round < ROUNDS; round++) { \
            uint64_t start = ticks_now(); \
            for (int i = 0; i < (calls); i++) step(n, x); \
            /* The chain has to be complete before the clock is read. */ \
            __asm__ volatile("lfence" : "+" where (x)); \
            took[round] = ticks_now() - start; \
            if (took[round] < least) least = took[round]; \
        } \
        for (int round = 0; round < ROUNDS; round++) \
            if (took[round] < 2 * least) sum += took[round], rounds++; \
        /* A program that has slept is rarely interrupted for others in the fraction of a millisecond that this takes. */ \
        usleep(1000); \
        for (int round = 0; round < ROUNDS; round++) x = round_##name(x); \
        counts(#name, (uint64_t)ROUNDS * (calls), (uint64_t)ROUNDS * (calls), 0); \
        known_add("round_" #name ";" #name, sum / rounds * ROUNDS); \
        dprintf(1, "within " #name " %d\n", WITHIN); \
    }

CHAIN(divisions_5, double, "x", 1.5, 500, DIVIDE, 5)
CHAIN(divisions_20, double, "x", 1.5, 300, DIVIDE, 20)
CHAIN(divisions_100, double, "x", 1.5, 100, DIVIDE, 100)
CHAIN(products_20, uint64_t, "r", 3, 500, MULTIPLY, 20)
CHAIN(products_100, uint64_t, "r", 3, 200, MULTIPLY, 100)
CHAIN(products_3000, uint64_t, "r", 3, 20, MULTIPLY, 3000)
CHAIN(squares, double, "x", 0.5, 200, ADD_SQUARES, 100)
CHAIN(loads, struct link *, "r", ring, 500, FOLLOW, 20)

int main(void) {
    for (unsigned i = 0; i < 128; i++) numbers[i] = i;
    // Steps through the ring by 89 places, so that no prefetcher helps.
    for (unsigned i = 0; i < 256; i++) ring[i].next = &ring[(i + 89) % 256];
    // Until the processor runs at its full speed.
    spin_only(100000000);
    all_divisions_5();
    all_divisions_20();
    all_divisions_100();
    all_products_20();
    all_products_100();
    all_products_3000();
    all_squares();
    all_loads();
    print_spent();
    return 0;
}
