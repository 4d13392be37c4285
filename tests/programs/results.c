// Arguments and results of every class: rax:rdx, xmm0:xmm1, st0:st1, memory, the stack.
//# arc: main -> big 100
//# arc: main -> pair 100
//# arc: main -> fpair 100
//# arc: main -> blend 100
//# arc: main -> wide 100
//# arc: main -> ld 100
//# arc: main -> cld 100
//# arc: main -> many 100
//# arc: main -> byvalue 100
//# arc: main -> eight 100
//# arc: main -> vec 100
#include "test.h"
#include <complex.h>
#include <emmintrin.h>
struct Big { long v[9]; };
struct Pair { long a, b; };
struct FPair { double a, b; };
struct Blend { double a; long b; };
OPAQUE struct Big big(long x) { struct Big b; for (int i = 0; i < 9; i++) b.v[i] = x + i; return b; }
OPAQUE struct Pair pair(long x) { BARRIER(); return (struct Pair){x, -x}; }
OPAQUE struct FPair fpair(double x) { BARRIER(); return (struct FPair){x, -x}; }
OPAQUE struct Blend blend(long x) { BARRIER(); return (struct Blend){x, -x}; }
OPAQUE __int128 wide(long x) { BARRIER(); return ((__int128)x << 64) | 5; }
OPAQUE long double ld(long double x) { BARRIER(); return x * 2; }
OPAQUE long double _Complex cld(long double x) { BARRIER(); return x + 3.0L * I; }
OPAQUE long many(long a, long b, long c, long d, long e, long f, long g, char h, short i, long j) {
    BARRIER(); return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j;
}
OPAQUE long byvalue(struct Big b, long x) { BARRIER(); return b.v[0] + b.v[8] + x; }
OPAQUE double eight(double a, float b, double c, float d, double e, float f, double g, float h, double i) {
    BARRIER(); return a + b + c + d + e + f + g + h + 100 * i;
}
OPAQUE __m128i vec(__m128i a, __m128i b) { BARRIER(); return _mm_add_epi32(a, b); }
int main(void) {
    for (long i = 0; i < 100; i++) {
        struct Big b = big(i);
        CHECK(b.v[0] == i && b.v[8] == i + 8);
        struct Pair p = pair(i);
        CHECK(p.a == i && p.b == -i);
        struct FPair f = fpair(i);
        CHECK(f.a == i && f.b == -i);
        struct Blend m = blend(i);
        CHECK(m.a == i && m.b == -i);
        __int128 w = wide(i);
        CHECK((long)(w >> 64) == i && (long)w == 5);
        CHECK(ld(i + 0.5L) == 2 * i + 1);
        long double _Complex c = cld(i);
        CHECK(creall(c) == i && cimagl(c) == 3);
        CHECK(many(1, 2, 3, 4, 5, 6, 7, 8, 9, i) == 285 + 10 * i);
        CHECK(byvalue(b, 1) == 2 * i + 9);
        CHECK(eight(1, 2, 3, 4, 5, 6, 7, 8, i) == 36 + 100 * i);
        CHECK(_mm_cvtsi128_si32(vec(_mm_set1_epi32(i), _mm_set1_epi32(2))) == i + 2);
    }
    return 0;
}
