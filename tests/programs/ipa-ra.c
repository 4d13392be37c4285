// The same from the compiler itself: callees that it sees, callers with more values than saved registers.
//# arc: main -> caller 1000
//# arc: caller -> bump 2000
#include "test.h"
static long counter;
static SEEN void bump(void) { __asm__ volatile("incq %0" : "+m"(counter)); }
OPAQUE long caller(long a, long b, long c, long d, long e, long f) {
    long g = a * 3, h = b * 5, i = c * 7, j = d * 11, k = e * 13, l = f * 17;
    __asm__ volatile("" : "+r"(g), "+r"(h), "+r"(i), "+r"(j), "+r"(k), "+r"(l));
    bump();
    long m = g + a, n = h + b, o = i + c;
    __asm__ volatile("" : "+r"(m), "+r"(n), "+r"(o));
    bump();
    BARRIER();
    return a + b + c + d + e + f + g + h + i + j + k + l + m + n + o;
}
int main(void) {
    for (long i = 0; i < 1000; i++) {
        long r = caller(i, i + 1, i + 2, i + 3, i + 4, i + 5);
        long sum = 6 * i + 15;
        long scaled = 3 * i + 5 * (i + 1) + 7 * (i + 2) + 11 * (i + 3) + 13 * (i + 4) + 17 * (i + 5);
        long again = 4 * i + 6 * (i + 1) + 8 * (i + 2);
        CHECK(r == sum + scaled + again);
    }
    CHECK(counter == 2000);
    return 0;
}
