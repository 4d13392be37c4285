// Exceptions through qsort and bsearch, and callbacks from them after a catch, which are charged to the frame that is alive.
//# arc: main -> sort 100
//# arc: sort -> throwing 100
//# arc: main -> search 100
//# arc: search -> found 100
//# arc: main -> after 100
//# arc: after -> plain 100
//# arc: main -> plain 100
//# arc: main -> deep 100
//# arc: deep -> deep 2000
//# arc: deep -> sort_deep 100
//# arc: sort_deep -> throwing 100
//# entry-arc: _start -> throwing 200
//# entry-arc: _start -> found 100
//# entry-arc: _start -> plain 200
#include "test.h"
#include <stdlib.h>
extern "C" {
OPAQUE int throwing(const void *a, const void *b) { throw 1; }
OPAQUE int found(const void *a, const void *b) { throw 2L; }
OPAQUE int plain(const void *a, const void *b) { BARRIER(); return *(int *)a - *(int *)b; }
OPAQUE int sort() {
    int v[2] = {2, 1};
    try { qsort(v, 2, sizeof *v, throwing); } catch (int) { return 1; }
    return 0;
}
OPAQUE int search() {
    int v[1] = {2};
    void *(*volatile libc)(const void *, const void *, size_t, size_t, int (*)(const void *, const void *)) = bsearch;
    try { libc(v, v, 1, sizeof *v, found); } catch (long) { return 2; }
    return 0;
}
OPAQUE int sort_deep() { int v[2] = {2, 1}; qsort(v, 2, sizeof *v, throwing); BARRIER(); return v[0]; }
OPAQUE int deep(int n) { int r = n ? deep(n - 1) : sort_deep(); BARRIER(); return r + 1; }
// Where deep's frames were.
OPAQUE int after() { int v[2] = {2, 1}; qsort(v, 2, sizeof *v, plain); BARRIER(); return v[0]; }
}
int main() {
    for (int i = 0; i < 100; i++) {
        CHECK(sort() == 1 && search() == 2);
        try { deep(20); CHECK(0); } catch (int x) { CHECK(x == 1); }
        // Now the callers' frames are gone, and main's own call is the newest.
        int v[2] = {2, 1};
        qsort(v, 2, sizeof *v, plain);
        CHECK(after() == 1);
    }
    return 0;
}
