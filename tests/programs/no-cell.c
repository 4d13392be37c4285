// Functions that need no cell in the shadow stack, because they lead directly to hooked functions only: callbacks out of
// the C library below them, jumps between them, recursion, and a longjmp through them.
//# arc: main -> run 50
//# arc: run -> plain 50
//# arc: plain -> key 300
//# arc: run -> sorts 50
//# arc: sorts -> sorted 50
//# arc: sorts -> key 50
//# arc: sorted -> compare 50
//# arc: compare -> key 200
//# arc: run -> jumps 100
//# arc: jumps -> plain 50
//# arc: jumps -> second 50
//# arc: second -> plain 50
//# arc: run -> even 50
//# arc: even -> odd 250
//# arc: odd -> even 250
//# arc: run -> tree 50
//# arc: tree -> tree 1500
//# arc: run -> catches 50
//# arc: catches -> passes 50
//# arc: passes -> passes 150
//# arc: passes -> throws 50
//# arc: catches -> compare 50
//# arc: catches -> key 50
//# hooks: both
#include "test.h"
#include <setjmp.h>
#include <stdlib.h>
typedef int Compare(const void *, const void *);
static void *(*volatile search)(const void *, const void *, size_t, size_t, Compare *) = bsearch;
static jmp_buf there;
OPAQUE long key(long x) { BARRIER(); return x ^ 5; }
OPAQUE long plain(long x) { long r = key(x); BARRIER(); return r + key(r); }
OPAQUE int compare(const void *a, const void *b) { long r = key(*(int *)a); BARRIER(); r -= key(*(int *)b); return r > 0; }
OPAQUE long sorted(long x) {
    int v = x;
    CHECK(search(&v, &v, 1, sizeof v, compare) == &v);
    BARRIER();
    return v;
}
OPAQUE long sorts(long x) { long r = sorted(x); BARRIER(); return r + key(r); }
OPAQUE long second(long x) { return plain(x + 1); }
OPAQUE long jumps(long x) { return x & 1 ? second(x) : plain(x); }
OPAQUE long odd(long n);
OPAQUE long even(long n) { return n ? odd(n - 1) : 1; }
OPAQUE long odd(long n) { return n ? even(n - 1) : 0; }
OPAQUE long tree(long n) { if (!n) return 1; long r = tree(n - 1); BARRIER(); r += tree(n - 1); BARRIER(); return r; }
OPAQUE void throws(void) { longjmp(there, 1); }
OPAQUE long passes(long n) { if (n) passes(n - 1); else throws(); BARRIER(); return n; }
OPAQUE long catches(long x) {
    int v = 5;
    if (!setjmp(there)) passes(3);
    CHECK(search(&v, &v, 1, sizeof v, compare) == &v);
    BARRIER();
    return key(v);
}
OPAQUE long run(long x) {
    long r = plain(x);
    BARRIER();
    r += sorts(x);
    BARRIER();
    r += jumps(x);
    BARRIER();
    r += jumps(x + 1);
    BARRIER();
    r += even(10);
    BARRIER();
    r += tree(4);
    BARRIER();
    return r + catches(x);
}
int main(void) {
    long r = 0;
    for (long i = 0; i < 50; i++) r += run(i);
    return r == 0;
}
