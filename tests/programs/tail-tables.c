// Operations of interpreters, each of which ends in a tail call through a table of functions, of pointers or of distances. The tables begin
// with the start of a function that jumps through them, and contain nothing else, or also lead elsewhere.
// With clang's -finstrument-functions they read their return addresses, so their exits are not hooked.
//# not: clang-O1-instrument
//# arc: main -> inc 100
//# arc: inc -> inc 100
//# arc: inc -> dbl 200
//# arc: dbl -> inc 200
//# arc: dbl -> dbl 200
//# arc: inc -> halt 100
//# arc: main -> solo 100
//# arc: solo -> solo 800
//# arc: main -> mixed 100
//# arc: mixed -> mixed 400
//# arc: mixed -> other 100
//# arc: other -> helper 100
//# arc: other -> mixed 100
//# arc: mixed -> stop 100
//# arc: main -> near 100
//# arc: near -> near 200
//# arc: near -> distant 200
//# arc: distant -> near 200
//# arc: near -> finish 100
//# hooks: both
//# not: O2-lto
//# callgrind: no, a jump of a function to itself is a loop to it
#include "test.h"

#if defined(__clang__) && defined(__OPTIMIZE__) && defined(__has_attribute)
#define TAIL __attribute__((musttail))
#else
#define TAIL
#endif
typedef long op(const unsigned char *, long, long *);

OPAQUE op inc, dbl, halt, solo, mixed, other, stop, near, distant, finish;
static op *const words[] = {inc, dbl, halt, halt};
OPAQUE long inc(const unsigned char *p, long v, long *c) { c[0]++; TAIL return words[*p & 3](p + 1, v + 1, c); }
OPAQUE long dbl(const unsigned char *p, long v, long *c) { c[1]++; TAIL return words[*p & 3](p + 1, v * 2, c); }
OPAQUE long halt(const unsigned char *p, long v, long *c) { c[2] += *p; return v; }

static op *const same[] = {solo, solo};
OPAQUE long solo(const unsigned char *p, long v, long *c) {
    c[3]++;
    if (*p == 9) return v;
    TAIL return same[*p & 1](p + 1, v * 3, c);
}

// Its `switch` has a table too, which may come right after the other one.
static op *const some[] = {mixed, mixed, other, stop};
OPAQUE long mixed(const unsigned char *p, long v, long *c) {
    switch (v & 7) {
    case 0: v += 11; c[4]++; break;
    case 1: v ^= 21; c[4] += 2; break;
    case 2: v -= 31; c[5] += v; break;
    case 3: v *= 41; BARRIER(); break;
    case 4: v = -v; c[4] += 5; break;
    case 5: v |= 61; c[5] ^= 6; break;
    case 6: v <<= 1; c[4] -= 7; break;
    default: v += c[4]; break;
    }
    TAIL return some[*p & 3](p + 1, v, c);
}
OPAQUE long helper(long v) { BARRIER(); return v + 1; }
OPAQUE long other(const unsigned char *p, long v, long *c) {
    v += helper(v);
    BARRIER();
    TAIL return some[*p & 3](p + 1, v, c);
}
OPAQUE long stop(const unsigned char *p, long v, long *c) { return v + *p + c[4]; }

extern const int distances[];
__asm__(".section .rodata\n.p2align 2\n.globl distances\ndistances: .long near - distances, near - distances, distant - distances, "
        "finish - distances\n.text\n");
#define AT(i) ((op *)((const char *)distances + distances[i]))
OPAQUE long near(const unsigned char *p, long v, long *c) { c[6]++; TAIL return AT(*p & 3)(p + 1, v + 3, c); }
OPAQUE long distant(const unsigned char *p, long v, long *c) { c[7]++; TAIL return AT(*p & 3)(p + 1, v * 5, c); }
OPAQUE long finish(const unsigned char *p, long v, long *c) { c[6] += *p; return v; }

int main(void) {
    static const unsigned char code[] = {0, 1, 0, 0, 1, 1, 1, 0, 2, 7};
    static const unsigned char ones[] = {1, 0, 1, 1, 0, 0, 1, 1, 0, 9};
    static const unsigned char more[] = {0, 1, 0, 2, 1, 0, 1, 3, 7};
    static const unsigned char far[] = {0, 2, 0, 1, 2, 1, 0, 3, 7};
    long c[8] = {0};
    for (int i = 0; i < 100; i++) {
        CHECK(words[code[0]](code + 1, 1, c) == 49);
        CHECK(same[ones[0] & 1](ones + 1, 1, c) == 6561);
        some[more[0]](more + 1, i, c);
        CHECK(AT(far[0])(far + 1, 1, c) == 136);
    }
    CHECK(c[0] == 400 && c[1] == 400 && c[2] == 700 && c[3] == 900 && c[6] == 500 + 700 && c[7] == 200);
    return 0;
}
