// Signal handlers: charged to the function that they interrupt, on its stack or on one of their own.
//# arc: main -> interrupted 10
//# arc: interrupted -> handler 10
//# arc: main -> elsewhere 10
//# arc: elsewhere -> alternate 10
//# arc: handler -> leaf 10
//# arc: alternate -> leaf 10
//# entry-arc: _start -> handler 10
//# entry-arc: _start -> alternate 10
//# callgrind: no, it starts a call stack of its own for a signal
#include "test.h"
#include <signal.h>
#include <string.h>
static char stack[65536];
OPAQUE void leaf(void) { BARRIER(); }
OPAQUE void handler(int s) { leaf(); BARRIER(); }
OPAQUE void alternate(int s) { char here; CHECK(&here >= stack && &here < stack + sizeof stack); leaf(); BARRIER(); }
OPAQUE void interrupted(void) { raise(SIGUSR1); BARRIER(); }
OPAQUE void elsewhere(void) { raise(SIGUSR2); BARRIER(); }
int main(void) {
    stack_t s = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&s, 0);
    signal(SIGUSR1, handler);
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = alternate;
    a.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR2, &a, 0);
    for (int i = 0; i < 10; i++) interrupted();
    for (int i = 0; i < 10; i++) elsewhere();
    return 0;
}
