// Exceptions through functions that need no cell in the shadow stack, and a callback after them.
//# arc: main -> catches 40
//# arc: catches -> passes 40
//# arc: passes -> passes 120
//# arc: passes -> jumps 40
//# arc: jumps -> throws 40
//# arc: catches -> compare 40
//# arc: compare -> key 40
//# hooks: both
#include "test.h"
#include <stdlib.h>
typedef int Compare(const void *, const void *);
static void *(*volatile search)(const void *, const void *, size_t, size_t, Compare *) = bsearch;
extern "C" {
OPAQUE int key(int x) { BARRIER(); return x ^ 5; }
OPAQUE int compare(const void *a, const void *b) { int r = key(*(int *)a); BARRIER(); return r - (*(int *)b ^ 5); }
OPAQUE void throws(int x) { if (x >= 0) throw x; }
OPAQUE void jumps(int x) { throws(x + 1); }
OPAQUE int passes(int n, int x) { if (n) passes(n - 1, x); else jumps(x); BARRIER(); return n; }
OPAQUE int catches(int x) {
    int v = 7, caught = 0;
    try { passes(3, x); } catch (int number) { caught = number; }
    CHECK(search(&v, &v, 1, sizeof v, compare) == &v);
    BARRIER();
    return caught;
}
}
int main() {
    int sum = 0;
    for (int i = 0; i < 40; i++) sum += catches(i);
    CHECK(sum == 820);
    return 0;
}
