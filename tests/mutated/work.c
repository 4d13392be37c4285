// Work whose result depends on every call, return value, loop and jump table: a wrong patch changes the printed numbers.
// With -DLIBRARY, `shuffle` and `fold` are in a library of the program's own.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define APART __attribute__((noinline, noclone))

#ifdef LIBRARY
uint64_t shuffle(uint64_t *values, size_t count, uint64_t (*mix)(uint64_t));
uint64_t fold(const uint64_t *values, size_t count, int way);
#else
#include "own.c"
#endif

static uint64_t sum;

APART static uint64_t tiny(uint64_t x) { return x; }
APART static uint64_t rotate(uint64_t x) { return x << 7 | x >> 57; }
APART static uint64_t multiply(uint64_t x) { return x * 0x9e3779b97f4a7c15 + 1; }

// A loop whose head is the function's first instruction.
APART static uint64_t count_down(uint64_t n) {
    do {
        n -= 3;
    } while (n > 100);
    return n;
}

APART static uint64_t fibonacci(unsigned n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

APART static uint64_t odd(uint64_t n);
APART static uint64_t even(uint64_t n) { return n == 0 ? 1 : odd(n - 1); }
APART static uint64_t odd(uint64_t n) { return n == 0 ? 0 : even(n - 1); }

APART static uint64_t choose(unsigned way, uint64_t x) {
    switch (way) {
        case 0: return x + 1;
        case 1: return tiny(x) ^ 5;
        case 2: return rotate(x);
        case 3: return x / 3;
        case 4: return multiply(x);
        case 5: return x - (x >> 5);
        case 6: sum += x; return x;
        case 7: return rotate(multiply(x));
        case 9: return ~x;
        default: return way;
    }
}

// What runs only on an error is a part of its own, far away (gcc's .cold parts).
APART static uint64_t checked(uint64_t x, uint64_t limit) {
    if (__builtin_expect(x > limit, 0)) {
        fprintf(stderr, "too large: %lu\n", (unsigned long)x);
        if (x > 2 * limit) abort();
        sum ^= multiply(x);
    }
    return x % 1000 + limit;
}

APART static uint64_t many(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g, double h) {
    return a + 2 * b + 3 * c + 5 * d + 7 * e + 11 * f + 13 * g + (uint64_t)(17 * h);
}

APART static uint64_t frame(unsigned n, uint64_t x) {
    uint64_t room[16];
    for (unsigned i = 0; i < 16; i++) room[i] = x + i * n;
    if (n > 0) x = frame(n - 1, room[n & 15]);
    for (unsigned i = 0; i < 16; i++) x = rotate(x) ^ room[i];
    return x;
}

static uint64_t (*const table[])(uint64_t) = {tiny, rotate, multiply, count_down};

int main(void) {
    enum { COUNT = 64 };
    uint64_t values[COUNT];
    for (unsigned i = 0; i < COUNT; i++) values[i] = multiply(i);
    for (unsigned i = 0; i < 200; i++) {
        unsigned at = i % COUNT;
        values[at] ^= choose(i % 11, values[(at + 1) % COUNT]);
        values[at] += table[i % 4](i * 1000);
        values[at] += checked(i, 500);
    }
    sum += fibonacci(14) + even(31) * 2 + odd(31) + frame(9, 77) + many(1, 2, 3, 4, 5, 6, 7, 8.5);
    sum += shuffle(values, COUNT, rotate);
    for (int way = 0; way < 6; way++) sum = rotate(sum) + fold(values, COUNT, way);
    printf("%016lx\n", (unsigned long)sum);
    for (unsigned i = 0; i < COUNT; i += 9) printf("%016lx ", (unsigned long)values[i]);
    puts("");
    return (int)(sum % 97);
}
