// Code that is made at run time calls functions with and without frames, with any amount of stack in between, in turn for callers of
// different functions in the same place, of one function at different depths, for one that a longjmp leaves, and for one that has got
// its frame by a tail call.
//# arc: main -> first 300
//# arc: main -> second 300
//# arc: main -> handing 300
//# arc: main -> nested 300
//# arc: main -> catching 300
//# arc: main -> leaf 300
//# arc: handing -> second 300
//# arc: nested -> nested 900
//# arc: catching -> thrower 300
//# arc: thrower -> leaf 300
//# arc: thrower -> jump 300
//# arc: first -> leaf 1500
//# arc: first -> framed 1500
//# arc: first -> deep 1500
//# arc: second -> leaf 1800
//# arc: second -> framed 1800
//# arc: second -> deep 1800
//# arc: nested -> leaf 1200
//# arc: nested -> framed 1200
//# arc: nested -> deep 1200
//# arc: deep -> inner 4500
//# arc: framed -> nothing 4500
//# arc: inner -> nothing 4500
//# hooks: both
//# callgrind: no (it has no name for the caller)
#include "test.h"
#include <setjmp.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
static void (*made)(size_t size, void (*function)(void));
static jmp_buf target;
OPAQUE void nothing(void) { BARRIER(); }
void (*volatile pointer)(void) = nothing;
OPAQUE void leaf(void) { BARRIER(); }
OPAQUE void framed(void) { pointer(); BARRIER(); }
OPAQUE void inner(void) { pointer(); BARRIER(); }
OPAQUE void deep(void) { inner(); BARRIER(); }
OPAQUE void jump(void) { longjmp(target, 1); }
OPAQUE void first(size_t size) {
    for (int i = 0; i < 5; i++) {
        made(size, leaf);
        made(size, framed);
        made(size, deep);
    }
    BARRIER();
}
OPAQUE void second(size_t size) {
    for (int i = 0; i < 3; i++) {
        made(size, leaf);
        made(size, framed);
        made(size, deep);
    }
    BARRIER();
}
OPAQUE void handing(size_t size) { second(size); }
OPAQUE void nested(int depth, size_t size) {
    made(size, leaf);
    if (depth) nested(depth - 1, size);
    made(size, framed);
    made(size, deep);
    BARRIER();
}
OPAQUE void thrower(size_t size) {
    made(size, leaf);
    made(size, jump);
    BARRIER();
}
OPAQUE void catching(size_t size) {
    if (!setjmp(target)) thrower(size);
    BARRIER();
}
int main(void) {
    // push rbp; mov rbp, rsp; sub rsp, rdi; and rsp, -16; call rsi; leave; ret
    static const unsigned char bytes[] = {
        0x55, 0x48, 0x89, 0xe5, 0x48, 0x29, 0xfc, 0x48, 0x83, 0xe4, 0xf0, 0xff, 0xd6, 0xc9, 0xc3,
    };
    static const size_t sizes[] = {0, 64, 1600, 20000, 500000};
    void *code = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(code, bytes, sizeof bytes);
    CHECK(mprotect(code, 4096, PROT_READ | PROT_EXEC) == 0);
    made = (void (*)(size_t, void (*)(void)))code;
    for (int i = 0; i < 300; i++) {
        size_t size = sizes[i / 10 % 5];
        first(size);
        second(size);
        handing(size);
        nested(3, size);
        catching(size);
        made(size, leaf);
    }
    return 0;
}
