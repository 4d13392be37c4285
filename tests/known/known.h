// For programs that know their own times. A function spins for a number of ticks of the time stamp counter, and notes how long
// it really took, with the path of calls that leads to it. Interrupts belong to it as well, and the time for which other programs have
// the processor does not. tests/src/known.rs reads what such a program prints.
#ifndef KNOWN_H
#define KNOWN_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOINLINE __attribute__((noipa, noinline))
#define INLINE static inline __attribute__((always_inline))
// About 50 µs, so that what a function does beside spinning is less than a hundredth of its time.
#define SHORT 150000
#define PATHS 512

struct spent {
    char path[120];
    uint64_t ticks;
};

// Shared with children, and zero at the start.
static struct spent *spent;

__attribute__((constructor)) static void known_start(void) {
    spent = (struct spent *)mmap(0, PATHS * sizeof *spent, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (unsigned i = 0; i < PATHS; i++) spent[i].ticks = 0;
}

INLINE uint64_t ticks_now(void) {
    uint32_t lo, hi;
    __asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi));
    return (uint64_t)hi << 32 | lo;
}

// No function of the C library is called, because that might be hooked.
INLINE int known_is(const volatile char *a, const volatile char *b) {
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

INLINE void known_add(const char *path, uint64_t ticks) {
    static volatile char lock;
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) {}
    unsigned i = 0;
    while (spent[i].path[0] && !known_is(spent[i].path, path)) i++;
    if (!spent[i].path[0]) {
        volatile char *to = spent[i].path;
        while ((*to++ = *path++)) {}
    }
    __atomic_fetch_add(&spent[i].ticks, ticks, __ATOMIC_RELAXED);
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
}

// Spins without noting it. A step of the loop that takes longer than any interrupt was another program's.
INLINE uint64_t spin_only(uint64_t ticks) {
    uint64_t last = ticks_now(), spun = 0;
    while (spun < ticks) {
        uint64_t now = ticks_now();
        if (now - last < 4 * SHORT) spun += now - last;
        last = now;
    }
    return spun;
}

// Spins. `path` are the functions that are running, the outermost first, with ';' between them.
INLINE void spin(uint64_t ticks, const char *path) {
    known_add(path, spin_only(ticks));
}

// What is done within this took so long, whatever it was.
#define TIMED(path, ...) do { \
        uint64_t start_ = ticks_now(); \
        __VA_ARGS__; \
        known_add(path, ticks_now() - start_); \
    } while (0)

// The number of calls of a function, of those that no other call of it contains, and of those that never end.
INLINE void counts(const char *function, uint64_t calls, uint64_t primitive, uint64_t open) {
    dprintf(1, "calls %s %lu %lu %lu\n", function, calls, primitive, open);
}

// Prints the times. To be called once, when they are complete.
INLINE void print_spent(void) {
    for (unsigned i = 0; i < PATHS && spent[i].path[0]; i++)
        dprintf(1, "spent %s %lu\n", spent[i].path, spent[i].ticks);
}

#endif
