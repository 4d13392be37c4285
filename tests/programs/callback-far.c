// Callbacks far below the frame that they belong to, past what others have left on the stack: main's frame is larger than
// 2 MiB, and so is a function's whose direct calls and callbacks take turns.
//# arc: main -> compare 20
//# arc: main -> far 10
//# arc: far -> compare 20
//# arc: far -> direct 20
//# arc: far -> between 10
//# arc: between -> direct 10
//# arc: between -> compare 10
//# arc: direct -> nothing 30
//# arc: compare -> handed 25
//# arc: handed -> nothing 25
//# arc: compare -> nothing 25
//# hooks: both
#include "test.h"
#include <alloca.h>
#include <stdlib.h>
void *(*volatile search)(const void *, const void *, size_t, size_t, int (*)(const void *, const void *)) = bsearch;
static unsigned calls;
OPAQUE void nothing(void) { BARRIER(); }
OPAQUE int handed(const void *a, const void *b) { nothing(); BARRIER(); return *(int *)a - *(int *)b; }
// Every second time the frame is handed over.
OPAQUE int compare(const void *a, const void *b) {
    if (calls++ % 2) return handed(a, b);
    nothing();
    BARRIER();
    return *(int *)a - *(int *)b;
}
OPAQUE void direct(void) { nothing(); BARRIER(); }
#define LOOK(v) CHECK(search(&v, &v, 1, sizeof v, compare) == &v)
OPAQUE void between(void) {
    int v = 5;
    volatile char room[3000];
    room[0] = 1;
    direct();
    LOOK(v);
    room[0] = 2;
}
OPAQUE void far(void) {
    int v = 5;
    volatile char room[2500000];
    room[0] = 1;
    direct();
    LOOK(v);
    {
        // The frame grows, so that `between` is called from further down than `direct`.
        volatile char *more = alloca(700);
        more[0] = 1;
        between();
    }
    direct();
    LOOK(v);
    room[0] = 2;
}
int main(void) {
    int v = 5;
    volatile char room[2500000];
    room[0] = 1;
    for (int i = 0; i < 10; i++) {
        LOOK(v);
        far();
        LOOK(v);
    }
    room[0] = 2;
    return 0;
}
