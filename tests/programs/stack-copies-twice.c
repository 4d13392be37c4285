// A continuation: the bytes of the stack are copied away when it is made, and back each time it is called, so functions return several
// times, also when frames of others have been in their places meanwhile. (Ruby's callcc does the same.)
//# only: gcc
//# arc: main -> outer 1
//# arc: outer -> inner 1
//# arc: inner -> inner 4
//# arc: inner -> capture 1
//# arc: main -> others 4
//# arc: others -> others 32
//# arc: main -> call 3
//# arc: call -> revive 3
//# callgrind: no, it does not follow stacks that are copied
#include <stdlib.h>
#include <string.h>

#include "test.h"

enum { DEPTH = 4, CALLS = 4, ROOM = 1 << 12 };
static struct continuation {
    void *registers[5];
    char *from, *bytes;
    long size;
} continuation;
static char *base;
static int returned;

OPAQUE int capture(struct continuation *made) {
    made->from = __builtin_alloca(16);
    made->size = base - made->from;
    made->bytes = malloc(made->size);
    memcpy(made->bytes, made->from, made->size);
    return __builtin_setjmp(made->registers) ? 1 : 0;
}
OPAQUE void revive(struct continuation *called) {
    memcpy(called->from, called->bytes, called->size);
    __builtin_longjmp(called->registers, 1);
}
OPAQUE void call(struct continuation *called) {
    // The frame of `revive` must be below the bytes.
    long above = (char *)__builtin_frame_address(0) - called->from;
    volatile char *room = __builtin_alloca(above > 0 ? above + ROOM : ROOM);
    room[0] = 0;
    revive(called);
}
OPAQUE int inner(int depth);
OPAQUE int others(int depth);
static int (*volatile functions[])(int) = {inner, others};
OPAQUE int inner(int depth) {
    volatile char room[64];
    room[depth] = depth;
    int found = depth ? functions[0](depth - 1) : capture(&continuation);
    CHECK(room[depth] == depth);
    return found + 10;
}
OPAQUE int others(int depth) {
    volatile char room[64];
    room[depth] = depth;
    int found = depth ? functions[1](depth - 1) : 0;
    CHECK(room[depth] == depth);
    return found + 1;
}
OPAQUE int outer(void) {
    int found = functions[0](DEPTH);
    BARRIER();
    return found;
}
int main(void) {
    base = __builtin_frame_address(0);
    int found = outer();
    CHECK(found == 10 * (DEPTH + 1) + (returned ? 1 : 0));
    returned++;
    CHECK(functions[1](2 * DEPTH) == 2 * DEPTH + 1);
    if (returned < CALLS) call(&continuation);
    return 0;
}
