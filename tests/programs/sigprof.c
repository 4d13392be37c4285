// A program with its own SIGPROF handler and profiling timer: both continue to work.
//# others: allowed
//# arc: main -> work 1
//# stdout: ok
//# callgrind: no, it starts a call stack of its own for a signal
#include "test.h"
#include <signal.h>
#include <sys/time.h>
volatile int ticks;
OPAQUE void tick(int s) { ticks++; }
OPAQUE void work(void) { while (ticks < 10) BARRIER(); }
int main(void) {
    signal(SIGPROF, tick);
    struct itimerval t = {{0, 10000}, {0, 10000}};
    setitimer(ITIMER_PROF, &t, 0);
    work();
    struct itimerval left;
    getitimer(ITIMER_PROF, &left);
    CHECK(left.it_interval.tv_usec == 10000);
    printf("ok\n");
    return 0;
}
