/* Functions with arguments of unusual types. What a trace has of each call is in the comment before the function: of code without
   optimisation by any compiler, unless a compiler is named. */
#include <complex.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define KEEP __attribute__((noinline, noclone))
/* Several instructions, so that no function is too short for a hook. */
#define BODY __asm__ volatile("nop; nop; nop; nop; nop; nop; nop; nop" ::: "memory")
typedef float four __attribute__((vector_size(16)));
typedef float eight __attribute__((vector_size(32)));
typedef float two __attribute__((vector_size(8)));
enum colour { RED, GREEN = 5 };
enum sign { DOWN = -1, LEVEL, UP };
struct bits {
    unsigned a : 3;
    int b : 5;
    unsigned long c : 40;
    enum sign sign : 2;
    bool truth : 1;
};
struct packed {
    unsigned a : 7;
    unsigned long long b : 60;
} __attribute__((packed));
struct named {
    const char *none;
    char text[8];
    char full[4];
    int n;
};
struct floats {
    float a, b;
};
struct extended {
    long double x;
};
struct vector {
    four v;
};
struct long_text {
    long before;
    char text[100];
};
union either {
    int i;
    struct {
        unsigned low : 4, high : 28;
    } parts;
};
struct empty {};

#if !defined(__clang__) || __clang_major__ > 14
#define HAS_HALF
// gcc: half(a=1, h=2.5, b=3, d=4.5) = 10
KEEP int half(int a, _Float16 h, int b, double d) { BODY; return a + b + (int)h + d; }
// gcc: returns_half(h=-1.5) = -1.5
KEEP _Float16 returns_half(_Float16 h) { BODY; return h; }
#endif
// extended(a=1, x=2.5, b=3, d=4.5) = 10
KEEP int extended(int a, long double x, int b, double d) { BODY; return a + b + (int)x + d; }
// returns_extended(x=1.25) = ?
KEEP long double returns_extended(long double x) { BODY; return x * 2; }
// extended_in_structure(a=1, x={x=3.25}, b=2) = 6
KEEP int extended_in_structure(int a, struct extended x, int b) { BODY; return a + b + (int)x.x; }
// bit_fields(b={a=5, b=-3, c=1234567, sign=DOWN, truth=true}, n=1) = 7
KEEP int bit_fields(struct bits b, int n) { BODY; return b.a + n + b.truth; }
// returns_bit_fields(n=9) = {a=5, b=-3, c=9, sign=UP, truth=false}
KEEP struct bits returns_bit_fields(int n) { BODY; struct bits b = {5, -3, n, UP, false}; return b; }
// packed(p={a=100, b=1152921504606846975}, n=2) = 102
KEEP int packed(struct packed p, int n) { BODY; return p.a + n; }
// named(s={none=NULL, text="text", full="1234", n=7}, n=3) = 14
KEEP int named(struct named s, int n) { BODY; return n + s.n + strlen(s.text); }
// long_text(t={before=-1, text="Twenty-four characters. Twenty-four characters. Twenty-f"...}, n=2) = 1
KEEP int long_text(struct long_text t, int n) { BODY; return n + t.before; }
// floats(f={a=1.5, b=2.5}, b=3.5) = 7
KEEP int floats(struct floats f, float b) { BODY; return f.a + f.b + b; }
// either(e={i=77, parts={low=13, high=4}}, n=6) = 83
KEEP int either(union either e, int n) { BODY; return n + e.i; }
// vectors(a=1, v=?, d=5.5, w=?, b=2, e=6.5) = 23
KEEP int vectors(int a, four v, double d, two w, int b, double e) { BODY; return a + b + (int)v[0] + d + (int)w[0] + e; }
// vector_in_structure(a=1, v=?, d=5.5, b=2) = 9
KEEP int vector_in_structure(int a, struct vector v, double d, int b) { BODY; return a + b + (int)v.v[0] + d; }
// returns_vector(v=?) = ?
KEEP four returns_vector(four v) { BODY; return v; }
// gcc: wide(a=1, v=?, d=5.5, b=2, e=6.5) = 16
// clang: wide(a=1, ?) = 16
KEEP int wide(int a, eight v, double d, int b, double e) { BODY; return a + b + (int)v[0] + d + e; }
// complexes(a=1, c={re=2.0, im=3.0}, d=4.5, e={re=5.0, im=6.0}) = 12
KEEP int complexes(int a, double complex c, double d, float complex e) { BODY; return a + (int)creal(c) + d + creal(e); }
// returns_complex(c={re=1.0, im=2.0}) = {re=1.0, im=2.0}
KEEP double complex returns_complex(double complex c) { BODY; return c; }
// extended_complex(a=1, c=?, b=4) = 7
KEEP int extended_complex(int a, long double complex c, int b) { BODY; return a + b + (int)creall(c); }
// gcc: returns_extended_complex(a=2) = ?
// clang: returns_extended_complex(?)
KEEP long double complex returns_extended_complex(int a) { BODY; return a * 2.0L; }
// wide_integer(a=1, x=-2, b=3) = 2
KEEP int wide_integer(int a, __int128 x, int b) { BODY; return a + b + (int)x; }
// returns_wide_integer(x=-170141183460469231731687303715884105728) = -170141183460469231731687303715884105727
KEEP __int128 returns_wide_integer(__int128 x) { BODY; return x + 1; }
// quadruple(a=1, x=?, d=3.5) = 4
KEEP int quadruple(int a, __float128 x, double d) { BODY; return a + d + (x == 9); }
// small(b=true, c=GREEN, k='x') = 126
KEEP int small(_Bool b, enum colour c, char k) { BODY; return b + c + k; }
// nothing(b=2) = 2
KEEP int nothing(struct empty a, int b) { BODY; return b; }
// no_parameters()
KEEP void no_parameters(void) { BODY; }
#ifdef __clang__
// clang: bits_of_integer(a=1, x=?, y=?, b=4) = 6
KEEP int bits_of_integer(int a, _BitInt(40) x, unsigned _BitInt(100) y, int b) { BODY; return a + (int)x + b + (int)y; }
// clang: spare_bits(a=1, x=?, b=4) = 3
KEEP int spare_bits(int a, _BitInt(17) x, int b) { BODY; return a + (int)x + b; }
#else
// gcc: decimal(a=1, x=?, y=?, d=3.5) = 5
KEEP int decimal(int a, _Decimal64 x, _Decimal128 y, double d) { BODY; return a + d + (x == 2.5DD) + (y == 3); }
#endif

int main(void) {
    struct bits b = {5, -3, 1234567, DOWN, true};
    struct packed p = {100, 0xfffffffffffffff};
    struct named s = {0, "text", {'1', '2', '3', '4'}, 7};
    struct long_text t = {-1, "Twenty-four characters. Twenty-four characters. Twenty-four characters."};
    struct floats f = {1.5, 2.5};
    struct extended l = {3.25L};
    struct vector v = {{1, 2, 3, 4}};
    union either u = {.i = 77};
    int sum = 0;
#ifdef HAS_HALF
    sum += half(1, (_Float16)2.5, 3, 4.5);
    sum += (int)returns_half((_Float16)-1.5);
#endif
    sum += extended(1, 2.5L, 3, 4.5) + (int)returns_extended(1.25L) + extended_in_structure(1, l, 2);
    sum += bit_fields(b, 1) + returns_bit_fields(9).a + packed(p, 2) + named(s, 3) + long_text(t, 2) + floats(f, 3.5);
    sum += either(u, 6) + vectors(1, v.v, 5.5, (two){7, 8}, 2, 6.5) + vector_in_structure(1, v, 5.5, 2);
    sum += (int)returns_vector(v.v)[0] + wide(1, (eight){1}, 5.5, 2, 6.5);
    sum += complexes(1, 2 + 3 * I, 4.5, 5 + 6 * I) + (int)creal(returns_complex(1 + 2 * I));
    sum += extended_complex(1, 2 + 3 * I, 4) + (int)creall(returns_extended_complex(2));
    sum += wide_integer(1, -2, 3) + (int)returns_wide_integer((__int128)1 << 127) + quadruple(1, 2.5, 3.5);
    sum += small(1, GREEN, 'x') + nothing((struct empty){}, 2);
    no_parameters();
#ifdef __clang__
    sum += bits_of_integer(1, -2, 3, 4) + spare_bits(1, -2, 4);
#else
    sum += decimal(1, 2.5DD, 2.5DL, 3.5);
#endif
    printf("%d\n", sum);
    return 0;
}
