// An exception that leaves frames on both sides of a multiple of 64 MiB, where two shadows meet. A later callback does not
// belong to any of them.
//# flags: -pthread
//# arc: _start -> thread 1
//# arc: thread -> descend 1
//# arc: descend -> catching 20
//# arc: catching -> above 20
//# arc: above -> below 20
//# arc: below -> thrower 20
//# arc: catching -> compare 20
//# arc: descend -> compare 20
//# arc: compare -> nothing 40
//# hooks: both
//# callgrind: no, it loses calls that an exception leaves
#include "boundary.h"
extern "C" {
OPAQUE void thrower(int x) {
    CHECK((uintptr_t)__builtin_frame_address(0) < boundary);
    throw x;
}
OPAQUE void below(int x) {
    char room[10000];
    USED(room);
    thrower(x);
    USED(room);
}
OPAQUE void above(int x) {
    char room[10000];
    USED(room);
    CHECK((uintptr_t)__builtin_frame_address(0) > boundary);
    below(x);
    USED(room);
}
OPAQUE void catching(int x) {
    try {
        above(x);
    } catch (int caught) {
        CHECK(caught == x);
    }
    // Below the frames that the exception has left. The unwinder has used most of that stack, too.
    int v = 5;
    char *room = (char *)alloca(40000);
    USED(room);
    CHECK(search(&v, &v, 1, sizeof v, compare) == &v);
    USED(room);
}
OPAQUE void descend() {
    int v = 5;
    // The frame ends a little above the boundary.
    char *room = (char *)alloca((uintptr_t)__builtin_frame_address(0) - boundary - 5000);
    USED(room);
    for (int i = 0; i < 20; i++) {
        catching(i);
        CHECK(search(&v, &v, 1, sizeof v, compare) == &v);
    }
    USED(room);
}
OPAQUE void *thread(void *argument) { descend(); BARRIER(); return argument; }
}
int main() {
    run_across_boundary(thread);
    return 0;
}
