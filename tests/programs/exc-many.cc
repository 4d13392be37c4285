// Tens of thousands of exceptions, and some through thousands of frames with a destructor each.
//# arc: main -> shallow 50000
//# arc: shallow -> thrower 50000
//# arc: main -> deep 3
//# arc: deep -> deep 15000
//# arc: deep -> thrower 3
//# arc: deep -> cleaned 15003
//# callgrind: no, it takes too long
#include "test.h"
extern "C" {
static long count;
OPAQUE void cleaned() { count++; }
OPAQUE void thrower(int x) { throw x; }
OPAQUE int shallow(int x) { try { thrower(x); } catch (int y) { return y; } return -1; }
struct Guard { __attribute__((always_inline)) ~Guard() { cleaned(); BARRIER(); } };
OPAQUE int deep(int n) { Guard guard; if (n) { int r = deep(n - 1); BARRIER(); return r + 1; } thrower(4); return 0; }
}
int main() {
    for (int i = 0; i < 50000; i++) CHECK(shallow(i) == i);
    for (int i = 0; i < 3; i++) try { deep(5000); CHECK(0); } catch (int x) { CHECK(x == 4); }
    CHECK(count == 15003);
    return 0;
}
