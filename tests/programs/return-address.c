// Functions that ask for return addresses, their own and the one above: those of their callers, as without hooks.
//# others: allowed
//# only: gcc
//# arc: main -> own 10
//# arc: main -> outer 10
//# arc: outer -> inner 10
//# arc: main -> middle 10
//# arc: middle -> above 10
//# flags: -fno-omit-frame-pointer
#include "test.h"
extern int main(void);
extern char __executable_start, etext;
OPAQUE void *own(void) { BARRIER(); return __builtin_return_address(0); }
OPAQUE void *frame(void) { BARRIER(); return __builtin_frame_address(0); }
OPAQUE void *inner(void) { BARRIER(); return __builtin_return_address(0); }
OPAQUE void *outer(void) { void *r = inner(); BARRIER(); return r; }
// The address that its caller returns to.
OPAQUE void *above(void) { BARRIER(); return __builtin_return_address(1); }
OPAQUE void *middle(void) { void *r = above(); BARRIER(); return r; }
int main(void) {
    for (int i = 0; i < 10; i++) {
        char *mine = own(), *outers = outer();
        CHECK(mine > &__executable_start && mine < &etext);
        CHECK(outers > (char *)outer && outers < (char *)outer + 100);
        CHECK(frame() != 0);
        char *middles = middle();
        CHECK(middles > &__executable_start && middles < &etext);
    }
    return 0;
}
