// Exceptions caught some frames up, with destructors on the way: every call after them has its own caller.
//# arc: main -> attempt 300
//# arc: attempt -> middle 300
//# arc: middle -> thrower 300
//# arc: middle -> cleaned 300
//# arc: attempt -> caught_int 100
//# arc: attempt -> caught_double 100
//# arc: attempt -> after 300
//# arc: main -> outer 100
//# arc: outer -> middle_rest 100
//# arc: middle_rest -> thrower 100
//# arc: outer -> caught_rest 100
#include "test.h"
extern "C" {
OPAQUE void cleaned() { BARRIER(); }
OPAQUE void after() { BARRIER(); }
OPAQUE int caught_int(int x) { BARRIER(); return x; }
OPAQUE int caught_double(double x) { BARRIER(); return (int)x; }
OPAQUE int caught_rest() { BARRIER(); return 3; }
OPAQUE void thrower(int kind) {
    if (kind == 0) throw 17;
    if (kind == 1) throw 2.5;
    if (kind == 2) throw "rest";
    BARRIER();
}
struct Guard { __attribute__((always_inline)) ~Guard() { cleaned(); BARRIER(); } };
OPAQUE void middle(int kind) { Guard guard; thrower(kind); BARRIER(); }
OPAQUE void middle_rest() { thrower(2); BARRIER(); }
OPAQUE int attempt(int kind) {
    int r = 1;
    try { middle(kind); } catch (int x) { r = caught_int(x); } catch (double x) { r = caught_double(x); }
    after();
    return r;
}
OPAQUE int outer() { try { middle_rest(); } catch (...) { return caught_rest(); } return 0; }
}
int main() {
    for (int i = 0; i < 100; i++) CHECK(attempt(0) == 17 && attempt(1) == 2 && attempt(3) == 1 && outer() == 3);
    return 0;
}
