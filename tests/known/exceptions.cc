// C++ exceptions end the calls whose frames they leave.
#include "known.h"

struct Guard {
    const char *path;
    // A landing pad spins on the way.
    __attribute__((always_inline)) ~Guard() { spin(SHORT, path); }
};

extern "C" NOINLINE void thrower() {
    spin(SHORT, "main;catcher;frame;thrower");
    throw 1;
}

extern "C" NOINLINE void frame() {
    Guard guard{"main;catcher;frame"};
    spin(2 * SHORT, "main;catcher;frame");
    thrower();
}

extern "C" NOINLINE void catcher() {
    try {
        frame();
    } catch (int) {
        spin(4 * SHORT, "main;catcher");
    }
    spin(SHORT, "main;catcher");
}

extern "C" NOINLINE void deep(int depth) {
    spin(SHORT, depth == 6 ? "main;again;deep" : "main;again;deep;deep");
    if (depth == 1) throw 2L;
    deep(depth - 1);
}

extern "C" NOINLINE void again() {
    try {
        deep(6);
    } catch (...) {
        spin(2 * SHORT, "main;again");
        throw;
    }
}

int main() {
    // The unwinder reads its tables in the first throw.
    for (int i = 0; i < 40; i++) catcher();
    for (int i = 0; i < 40; i++) {
        try {
            again();
        } catch (long) {
        }
    }
    spin(100 * SHORT, "main");
    counts("catcher", 40, 40, 0);
    counts("frame", 40, 40, 0);
    counts("thrower", 40, 40, 0);
    counts("deep", 240, 40, 0);
    counts("again", 40, 40, 0);
    print_spent();
    return 0;
}
