// Tail calls as the compiler makes them: charged to the function that jumps, optimised or not.
//# hooks: both
//# arc: main -> f 100
//# arc: f -> g 100
//# arc: g -> h 100
//# arc: main -> dispatch 50
//# arc: dispatch -> g 25
//# arc: dispatch -> h 25
//# arc: g -> h 25
#include "test.h"
OPAQUE int h(int x) { BARRIER(); return x + 1; }
OPAQUE int g(int x) { BARRIER(); return h(x + 1); }
OPAQUE int f(int x) { BARRIER(); return g(x + 1); }
int (*table[2])(int) = {g, h};
OPAQUE int dispatch(int x) { BARRIER(); return table[x & 1](x); }
int main(void) {
    for (int i = 0; i < 100; i++) CHECK(f(i) == i + 3);
    for (int i = 0; i < 50; i++) CHECK(dispatch(i) == i + 2 - (i & 1));
    return 0;
}
