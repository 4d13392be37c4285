// C++ exceptions end the calls whose frames they leave.
#include "known.h"

// When the present exception was thrown, or went on from a landing pad, and the path of the function that did so: what the
// unwinder takes until the next landing pad is that function's time, because its call ends there.
static uint64_t left;
static const char *leaver;

INLINE void leave(const char *path) {
    leaver = path;
    left = known_begin();
}

INLINE void land(void) {
    if (leaver) known_add(leaver, known_end() - left);
    leaver = 0;
}

struct Guard {
    const char *path;
    // A landing pad spins on the way.
    __attribute__((always_inline)) ~Guard() {
        land();
        spin(SHORT, path);
        leave(path);
    }
};

extern "C" NOINLINE void thrower() {
    spin(SHORT, "main;catcher;frame;thrower");
    leave("main;catcher;frame;thrower");
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
        land();
        spin(4 * SHORT, "main;catcher");
    }
    spin(SHORT, "main;catcher");
}

extern "C" NOINLINE void deep(int depth) {
    spin(SHORT, depth == 6 ? "main;again;deep" : "main;again;deep;deep");
    if (depth == 1) {
        leave("main;again;deep;deep");
        throw 2L;
    }
    deep(depth - 1);
}

extern "C" NOINLINE void again() {
    try {
        deep(6);
    } catch (...) {
        land();
        spin(2 * SHORT, "main;again");
        leave("main;again");
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
            land();
        }
    }
    spin(1000 * SHORT, "main");
    counts("catcher", 40, 40, 0);
    counts("frame", 40, 40, 0);
    counts("thrower", 40, 40, 0);
    counts("deep", 240, 40, 0);
    counts("again", 40, 40, 0);
    print_spent();
    return 0;
}
