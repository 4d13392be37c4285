// backtrace() from a handler that may come in at any instruction of a thunk: never ends early, never crashes.
//# not: musl
//# flags: -fexceptions -fasynchronous-unwind-tables
//# others: allowed
//# arc: main -> two 3000000
//# arc: two -> one 3000000
//# stdout: ok
//# callgrind: no, it starts a call stack of its own for a signal
#include "test.h"
#include <execinfo.h>
#include <signal.h>
#include <sys/time.h>
static volatile int hits, least = 1000, most;
OPAQUE void handler(int s) {
    void *frames[100];
    int n = backtrace(frames, 100);
    if (n < least) least = n;
    if (n > most) most = n;
    hits++;
}
OPAQUE long one(long x) { BARRIER(); return x + 1; }
OPAQUE long two(long x) { long r = one(x); BARRIER(); return r + 1; }
int main(void) {
    // The first one loads the unwinder.
    handler(0);
    least = 1000, most = 0;
    signal(SIGALRM, handler);
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, 0);
    long r = 0;
    for (int i = 0; i < 3000000; i++) r = two(r);
    setitimer(ITIMER_REAL, &never, 0);
    CHECK(r == 6000000);
    // handler, the restorer, [one, two,] main, libc's two, _start. In a prologue one may be missing.
    if (hits && (least < 6 || most > 9)) printf("%d to %d frames in %d backtraces\n", least, most, hits);
    printf("ok\n");
    return 0;
}
