// Exceptions and signals: caught within a handler, or thrown by a handler from the access that failed.
//# flags: -fnon-call-exceptions -fasynchronous-unwind-tables
//# only: gcc
//# arc: main -> within 50
//# arc: within -> handler 50
//# arc: handler -> attempt 50
//# arc: attempt -> thrower 50
//# arc: attempt -> caught 50
//# arc: handler -> compare 50
//# entry-arc: _start -> compare 50
//# entry-arc: _start -> handler 50
//# arc: main -> reach 50
//# arc: reach -> fault 50
//# arc: fault -> crash 50
//# arc: crash -> failed 50
//# entry-arc: _start -> failed 50
//# arc: fault -> cleaned 50
//# arc: reach -> caught 50
//# callgrind: no, it starts a call stack of its own for a signal
#include "test.h"
#include <signal.h>
#include <stdlib.h>
extern "C" {
OPAQUE void cleaned() { BARRIER(); }
OPAQUE int caught(int x) { BARRIER(); return x; }
OPAQUE void thrower(int x) { throw x; }
OPAQUE int attempt() { try { thrower(1); } catch (int x) { return caught(x); } return 0; }
OPAQUE int compare(const void *a, const void *b) { BARRIER(); return *(int *)a - *(int *)b; }
OPAQUE void handler(int) { int v[2] = {2, 1}; CHECK(attempt() == 1); qsort(v, 2, sizeof *v, compare); BARRIER(); }
OPAQUE void within() { raise(SIGUSR1); BARRIER(); }
OPAQUE void failed(int) { throw 2; }
OPAQUE int crash(volatile int *p) { int r = *p; BARRIER(); return r; }
struct Guard { __attribute__((always_inline)) ~Guard() { cleaned(); BARRIER(); } };
OPAQUE int fault(volatile int *p) { Guard guard; int r = crash(p); BARRIER(); return r; }
OPAQUE int reach() { try { fault(0); } catch (int x) { return caught(x); } return 0; }
}
int main() {
    struct sigaction action = {};
    action.sa_handler = handler;
    sigaction(SIGUSR1, &action, 0);
    action.sa_handler = failed;
    action.sa_flags = SA_NODEFER;
    sigaction(SIGSEGV, &action, 0);
    for (int i = 0; i < 50; i++) { within(); CHECK(reach() == 2); }
    return 0;
}
