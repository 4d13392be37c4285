// A timer that fires between any two instructions of thunks and functions: nothing is lost or doubled.
//# arc: main -> work 3000000
//# others: allowed
//# stdout: ok
//# callgrind: no, it starts a call stack of its own for a signal
#include "test.h"
#include <signal.h>
#include <sys/time.h>
volatile long ticks, entered;
OPAQUE void tick_leaf(void) { ticks++; }
OPAQUE void tick(int s) { tick_leaf(); BARRIER(); }
OPAQUE long work(long x) { BARRIER(); return x + 1; }
int main(void) {
    signal(SIGALRM, tick);
    struct itimerval t = {{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &t, 0);
    long x = 0;
    for (int i = 0; i < 3000000; i++) x = work(x);
    t.it_value.tv_usec = 0;
    setitimer(ITIMER_REAL, &t, 0);
    CHECK(x == 3000000);
    printf("ok\n");
    return 0;
}
