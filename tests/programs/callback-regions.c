// A stack that spans a multiple of 64 MiB, where two shadows meet: a jump from below it to above it leaves the frames on
// both sides, and a callback from below it belongs to a frame above it.
//# flags: -pthread
//# arc: _start -> thread 1
//# arc: thread -> descend 1
//# arc: descend -> jumping 20
//# arc: jumping -> above 20
//# arc: above -> below 20
//# arc: below -> leave 20
//# arc: leave -> nothing 20
//# arc: jumping -> compare 20
//# arc: descend -> compare 20
//# arc: compare -> nothing 40
//# hooks: both
//# callgrind: no, it loses calls that a jump leaves
#include "boundary.h"
#include <setjmp.h>
static jmp_buf there;
OPAQUE void leave(void) {
    nothing();
    CHECK((uintptr_t)__builtin_frame_address(0) < boundary);
    longjmp(there, 1);
}
OPAQUE void below(void) {
    char room[10000];
    USED(room);
    CHECK((uintptr_t)__builtin_frame_address(0) < boundary);
    leave();
    USED(room);
}
OPAQUE void above(void) {
    char room[10000];
    USED(room);
    CHECK((uintptr_t)__builtin_frame_address(0) > boundary);
    below();
    USED(room);
}
OPAQUE void jumping(void) {
    int v = 5;
    // Below the frames that the jump has left, which nothing overwrites.
    if (setjmp(there)) {
        char *room = alloca(40000);
        USED(room);
        CHECK(search(&v, &v, 1, sizeof v, compare) == &v);
        BARRIER();
        return;
    }
    above();
}
OPAQUE void descend(void) {
    int v = 5;
    // The frame ends a little above the boundary.
    char *room = alloca((uintptr_t)__builtin_frame_address(0) - boundary - 5000);
    USED(room);
    for (int i = 0; i < 20; i++) {
        jumping();
        CHECK(search(&v, &v, 1, sizeof v, compare) == &v);
    }
    USED(room);
}
OPAQUE void *thread(void *argument) { descend(); BARRIER(); return argument; }
int main(void) {
    run_across_boundary(thread);
    return 0;
}
