// Direct calls and callbacks in turn, from large frames: of a fixed size, with a frame pointer, with an array whose size
// changes, and in a recursion.
//# arc: main -> fixed 3
//# arc: main -> growing 3
//# arc: main -> varying 3
//# arc: varying -> varying 12
//# arc: fixed -> direct 1500
//# arc: fixed -> compare 1500
//# arc: fixed -> handing 1500
//# arc: growing -> direct 1500
//# arc: growing -> compare 1500
//# arc: growing -> between 1500
//# arc: varying -> direct 1500
//# arc: varying -> compare 1500
//# arc: between -> direct 1500
//# arc: between -> compare 1500
//# arc: handing -> direct 1500
//# arc: direct -> nothing 7500
//# arc: compare -> nothing 6000
//# hooks: both
// There clang keeps the return addresses of growing and varying on the stack for __cyg_profile_func_exit, so these two are
// hooked at their entry only (docs/profilers.md), and whoever called them is charged.
//# not: clang-O1-instrument
#include "test.h"
#include <alloca.h>
#include <stdlib.h>
#define USED(array) __asm__ volatile("" ::"r"(array) : "memory")
void *(*volatile search)(const void *, const void *, size_t, size_t, int (*)(const void *, const void *)) = bsearch;
OPAQUE void nothing(void) { BARRIER(); }
OPAQUE int compare(const void *a, const void *b) { nothing(); BARRIER(); return *(int *)a - *(int *)b; }
OPAQUE void direct(void) { nothing(); BARRIER(); }
OPAQUE void handing(void) { BARRIER(); direct(); BARRIER(); }
#define LOOK(v) CHECK(search(&v, &v, 1, sizeof v, compare) == &v)
OPAQUE void between(void) {
    int v = 5;
    direct();
    LOOK(v);
    BARRIER();
}
OPAQUE void fixed(void) {
    int v = 5;
    char room[100000];
    USED(room);
    for (int i = 0; i < 500; i++) {
        direct();
        LOOK(v);
        handing();
    }
    USED(room);
}
OPAQUE void growing(void) {
    int v = 5;
    for (int i = 0; i < 500; i++) {
        char *room = alloca(i % 50 * 16 + 16);
        USED(room);
        direct();
        LOOK(v);
        between();
    }
    BARRIER();
}
// Each activation's array is half as long as the one before, which is gone by then.
OPAQUE void varying(int depth, int size) {
    int v = 5;
    for (int i = 0; i < 100; i++) {
        char room[size + i % 7 * 16];
        USED(room);
        direct();
        LOOK(v);
        USED(room);
    }
    if (depth) varying(depth - 1, size / 2);
    BARRIER();
}
int main(void) {
    for (int i = 0; i < 3; i++) {
        fixed();
        growing();
        varying(4, 200000);
    }
    return 0;
}
