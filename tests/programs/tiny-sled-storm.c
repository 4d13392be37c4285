// A timer that fires between any two instructions of the way from a tiny function to its thunk.
//# arc: main -> r0 1000000
//# arc: main -> r1 1000000
//# arc: main -> r2 1000000
//# arc: main -> behind 1000000
//# others: allowed
//# callgrind: no, it starts a call stack of its own for a signal
#include "test.h"
#include <signal.h>
#include <sys/time.h>
#define R(n) ASM_FUNCTION(r##n, "ret"); void r##n(void);
R(0) R(1) R(2)
ASM_FUNCTION(behind, "push %rbx\n mov %rdi, %rbx\n lea 1(%rbx), %rax\n pop %rbx\n ret");
long behind(long);
void (*volatile rows[])(void) = {r0, r1, r2};
long (*volatile last)(long) = behind;
volatile long ticks;
void tick(int s) {
    volatile char waste[512];
    for (int i = 0; i < 512; i++) waste[i] = -1;
    ticks++;
}
int main(void) {
    signal(SIGALRM, tick);
    struct itimerval t = {{0, 100}, {0, 100}};
    setitimer(ITIMER_REAL, &t, 0);
    long x = 0;
    for (int i = 0; i < 1000000; i++) {
        rows[0](), rows[1](), rows[2]();
        x = last(x);
    }
    t.it_value.tv_usec = 0;
    setitimer(ITIMER_REAL, &t, 0);
    CHECK(x == 1000000);
    return 0;
}
