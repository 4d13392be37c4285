// clang's preserve_most: callers keep values in all registers except r11, through pointers too.
//# only: clang
//# arc: main -> work 1000
//# arc: work -> note 1000
//# arc: work -> through 1000
//# arc: through -> note 2000
//# arc: work -> loud 1000
//# arc: loud -> said 10
//# arc: loud -> note 1000
#include "test.h"
#define KEEPS __attribute__((preserve_most, noinline))
static volatile long total, lines;
OPAQUE void said(void) { lines++; }
static KEEPS void note(long x) { total += x; }
static KEEPS void (*volatile pointer)(long) = note;
static KEEPS void through(long x) { pointer(x); pointer(x + 1); }
static KEEPS void (*volatile further)(long) = through;
static void (*volatile speak)(void) = said;
static KEEPS void loud(long x) { if (x % 100 == 0) speak(); note(x + 1); }
OPAQUE long work(long a, long b, long c, long d, long e, long f) {
    long g = a * b, h = c * d, i = e * f, j = a ^ f, k = b + c, l = d - e, m = a * c;
    pointer(a); further(b); loud(c);
    return a + b * 3 + c * 5 + d * 7 + e * 11 + f * 13 + g * 17 + h * 19 + i * 23 + j * 29 + k * 31 + l * 37 + m * 41;
}
int main(void) {
    for (long i = 0; i < 1000; i++) {
        long a = i, b = i + 1, c = i, d = i * 7, e = i * 9, f = i >> 3;
        long sum = a + b * 3 + c * 5 + d * 7 + e * 11 + f * 13 + a * b * 17 + c * d * 19 + e * f * 23 + (a ^ f) * 29
            + (b + c) * 31 + (d - e) * 37 + a * c * 41;
        CHECK(work(a, b, c, d, e, f) == sum);
    }
    CHECK(lines == 10);
    return 0;
}
