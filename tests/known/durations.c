// Functions whose calls last for known, different times: the program prints the durations that half of the calls and 99 of 100 do not
// exceed, by its own clock.
#include "known.h"

#define CALLS 1000

struct durations {
    uint64_t ticks[CALLS];
    unsigned count;
};

// Spins, and notes how long it took.
INLINE void note(struct durations *to, uint64_t ticks, const char *path) {
    uint64_t start = known_begin();
    spin_only(ticks);
    uint64_t took = known_end() - start;
    known_add(path, took);
    to->ticks[to->count++] = took;
}

static struct durations steady, even, two, rare;

// All calls take equally long.
static NOINLINE void take_steady(void) { note(&steady, 40000, "main;take_steady"); }
// Durations are evenly distributed.
static NOINLINE void take_even(unsigned n) { note(&even, 20000 + 150 * n, "main;take_even"); }
// Half of the calls take a hundred times as long as the others.
static NOINLINE void take_two(unsigned n) { note(&two, n % 20 < 9 ? 3000 : 300000, "main;take_two"); }
// One in fifty calls takes long.
static NOINLINE void take_rare(unsigned n) { note(&rare, n % 50 ? 10000 : 1500000, "main;take_rare"); }

static int by_number(const void *a, const void *b) {
    uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;
    return one < other ? -1 : one > other;
}

INLINE void print_quantiles(const char *function, struct durations *of) {
    qsort(of->ticks, of->count, sizeof of->ticks[0], by_number);
    for (unsigned percent = 50; percent <= 99; percent += 49)
        dprintf(1, "quantile %s %u %lu\n", function, percent, of->ticks[(of->count * percent + 99) / 100 - 1]);
}

int main(void) {
    spin_only(20000000);
    for (unsigned n = 0; n < CALLS; n++) {
        take_steady();
        take_even(n);
        take_two(n);
        take_rare(n);
    }
    counts("take_steady", CALLS, CALLS, 0);
    counts("take_even", CALLS, CALLS, 0);
    counts("take_two", CALLS, CALLS, 0);
    counts("take_rare", CALLS, CALLS, 0);
    print_quantiles("take_steady", &steady);
    print_quantiles("take_even", &even);
    print_quantiles("take_two", &two);
    print_quantiles("take_rare", &rare);
    print_spent();
    return 0;
}
