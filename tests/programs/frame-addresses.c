// What a walk over the frames says of each: their stack pointers are the true ones (LuaJIT uses them).
//# not: static static-pie
//# not: musl
//# arc: main -> outer 3
//# arc: outer -> inner 3
//# arc: inner -> walk 3
//# others: allowed
//# callgrind: no (frames of valgrind's own are seen)
#include "test.h"
#include <unwind.h>
static unsigned long last, odd, ours;
static _Unwind_Reason_Code frame(struct _Unwind_Context *context, void *end) {
    unsigned long cfa = _Unwind_GetCFA(context);
    odd += cfa % 8 != 0 || cfa < last;
    last = cfa;
    ours++;
    return cfa >= (unsigned long)end ? _URC_END_OF_STACK : _URC_NO_REASON;
}
OPAQUE void walk(void *end) {
    last = 0;
    _Unwind_Backtrace(frame, end);
    BARRIER();
}
OPAQUE void inner(void *end) { walk(end); BARRIER(); }
OPAQUE void outer(void *end) { inner(end); BARRIER(); }
int main(void) {
    volatile long here = 0;
    for (int i = 0; i < 3; i++) outer((void *)&here);
    CHECK(odd == 0 && ours >= 9);
    return 0;
}
