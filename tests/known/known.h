// For programs that know their own times. A function spins for a number of ticks of the time stamp counter, and notes how long
// it really took, with the path of calls that leads to it. Interrupts belong to it as well, and the time for which other programs have
// the processor does not. tests/src/known.rs reads what such a program prints.
#ifndef KNOWN_H
#define KNOWN_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noipa, noinline))
#define INLINE static inline __attribute__((always_inline))
// About 50 µs, so that what a function does beside spinning is less than a hundredth of its time.
#define SHORT 150000
#define PATHS 512

struct spent {
    char path[120];
    uint64_t ticks;
    // The part of it for which others had the processor.
    uint64_t others;
};

// Shared with children, and zero at the start.
static struct spent *spent;
static double ticks_per_ns;

// No function of the C library is called, because that might be hooked.
INLINE long system_call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

INLINE uint64_t ticks_now(void) {
    uint32_t lo, hi;
    __asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi));
    return (uint64_t)hi << 32 | lo;
}

INLINE uint64_t raw_ns(void) {
    struct timespec now;
    system_call(SYS_clock_gettime, CLOCK_MONOTONIC_RAW, (long)&now, 0);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

// For how long other programs had the processor while this thread was ready, in ticks.
INLINE uint64_t known_ready(void) {
#ifdef KNOWN_WALL
    return 0; // gprofinject does not see it either
#endif
    char text[80] = "";
    long file = system_call(SYS_open, (long)"/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC, 0);
    if (file < 0) return 0;
    system_call(SYS_read, file, (long)text, sizeof text - 1);
    system_call(SYS_close, file, 0, 0);
    const volatile char *at = text;
    uint64_t ns = 0;
    while (*at && *at != ' ') at++;
    for (at++; *at >= '0' && *at <= '9'; at++) ns = ns * 10 + (*at - '0');
    return (uint64_t)(ns * ticks_per_ns);
}

// The beginning and the end of what takes as long as the difference, without what other programs took. What these two do is a part of it.
INLINE uint64_t known_begin(void) {
    uint64_t now = ticks_now();
    return now - known_ready();
}

INLINE uint64_t known_end(void) {
    uint64_t ready = known_ready();
    return ticks_now() - ready;
}

__attribute__((constructor)) static void known_start(void) {
    uint64_t ticks = ticks_now(), start = raw_ns(), now;
    while ((now = raw_ns()) - start < 2000000) {}
    ticks_per_ns = (double)(ticks_now() - ticks) / (now - start);
    spent = (struct spent *)mmap(0, PATHS * sizeof *spent, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (unsigned i = 0; i < PATHS; i++) spent[i].ticks = spent[i].others = 0;
}

INLINE int known_is(const volatile char *a, const volatile char *b) {
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

INLINE void known_add_both(const char *path, uint64_t ticks, uint64_t others) {
    static volatile char lock;
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) {}
    unsigned i = 0;
    while (spent[i].path[0] && !known_is(spent[i].path, path)) i++;
    if (!spent[i].path[0]) {
        volatile char *to = spent[i].path;
        while ((*to++ = *path++)) {}
    }
    __atomic_fetch_add(&spent[i].ticks, ticks, __ATOMIC_RELAXED);
    __atomic_fetch_add(&spent[i].others, others, __ATOMIC_RELAXED);
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
}

INLINE void known_add(const char *path, uint64_t ticks) { known_add_both(path, ticks, 0); }

// Spins without noting it, for so long at least, whoever interrupts the loop: a step that takes much longer than others is not counted.
INLINE uint64_t spin_only(uint64_t ticks) {
    uint64_t last = ticks_now(), spun = 0;
    while (spun < ticks) {
        uint64_t now = ticks_now();
        if (now - last < SHORT / 16) spun += now - last;
        last = now;
    }
    return spun;
}

// Spins. `path` are the functions that are running, the outermost first, with ';' between them.
INLINE void spin(uint64_t ticks, const char *path) {
    uint64_t start = known_begin();
    spin_only(ticks);
    known_add(path, known_end() - start);
}

// The same where no call comes after it that would tell gprofinject what other programs took. It may be in the time or not, as far as
// gprofinject's samples say.
INLINE void spin_at_the_end(uint64_t ticks, const char *path) {
    uint64_t start = ticks_now(), ready = known_ready();
    spin_only(ticks);
    ready = known_ready() - ready;
    known_add_both(path, ticks_now() - start, ready);
}

// What is done within this took so long, whatever it was.
#define TIMED(path, ...) do { \
        uint64_t start_ = known_begin(); \
        __VA_ARGS__; \
        known_add(path, known_end() - start_); \
    } while (0)

// The number of calls of a function, of those that no other call of it contains, and of those that never end.
INLINE void counts(const char *function, uint64_t calls, uint64_t primitive, uint64_t open) {
    dprintf(1, "calls %s %lu %lu %lu\n", function, calls, primitive, open);
}

// Prints the times. To be called once, when they are complete.
INLINE void print_spent(void) {
    for (unsigned i = 0; i < PATHS && spent[i].path[0]; i++)
        dprintf(1, "spent %s %lu\nothers %s %lu\n", spent[i].path, spent[i].ticks, spent[i].path, spent[i].others);
}

#endif
