// Exceptions thrown again, one within another, from destructors, constructors and static locals.
//# arc: main -> rethrown 50
//# arc: rethrown -> again 50
//# arc: again -> thrower 50
//# arc: again -> seen 50
//# arc: rethrown -> caught 50
//# arc: main -> nested 50
//# arc: nested -> thrower 50
//# arc: nested -> within 50
//# arc: within -> thrower 50
//# arc: within -> caught 50
//# arc: nested -> caught 50
//# arc: main -> destroyed 50
//# arc: destroyed -> thrower 50
//# arc: destroyed -> caught 50
//# arc: main -> lazy 50
//# arc: lazy -> initial 3
//# arc: initial -> thrower 2
//# arc: lazy -> caught 2
//# arc: main -> swapped 50
//# arc: swapped -> thrower 50
//# arc: swapped -> other 50
//# arc: swapped -> caught 50
//# arc: main -> function_try 50
//# arc: function_try -> thrower 50
//# arc: function_try -> caught 50
#include "test.h"
extern "C" {
OPAQUE void seen() { BARRIER(); }
OPAQUE int caught(int x) { BARRIER(); return x; }
OPAQUE void thrower(int x) { if (x) throw x; BARRIER(); }
OPAQUE void other(int x) { throw (long)x; }
OPAQUE void again() { try { thrower(7); } catch (int) { seen(); throw; } }
OPAQUE int rethrown() { try { again(); } catch (int x) { return caught(x); } return 0; }
OPAQUE int within() { try { thrower(3); } catch (int x) { return caught(x); } return 0; }
OPAQUE int nested() { try { thrower(4); } catch (int x) { return within() + caught(x); } return 0; }
struct Throws { __attribute__((always_inline)) ~Throws() noexcept(false) { thrower(5); } };
OPAQUE int destroyed() { try { Throws t; BARRIER(); } catch (int x) { return caught(x); } return 0; }
// Its guard is released by the clean-up, so the third call finds it unset.
static int tries;
OPAQUE int initial() { if (++tries < 3) thrower(9); return 1; }
OPAQUE int lazy() {
    try { static int value = initial(); return value; } catch (int x) { return caught(x); }
}
OPAQUE int swapped() {
    try { try { thrower(6); } catch (int x) { other(x); } } catch (long x) { return caught(x); }
    return 0;
}
OPAQUE int function_try(int x) try { thrower(x); return 0; } catch (int y) { return caught(y); }
}
int main() {
    for (int i = 0; i < 50; i++) {
        CHECK(rethrown() == 7 && nested() == 7 && destroyed() == 5);
        CHECK(lazy() == (i < 2 ? 9 : 1));
        CHECK(swapped() == 6 && function_try(8) == 8);
    }
    return 0;
}
