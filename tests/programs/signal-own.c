// A program with handlers of its own for SIGSEGV, SIGTRAP and SIGPROF: repairs, breakpoints and ticks are its own.
//# others: allowed
//# arc: main -> touch 20
//# arc: touch -> repair 20
//# arc: repair -> leaf 20
//# entry-arc: _start -> repair 20
//# arc: main -> stop 20
//# arc: stop -> trapped 20
//# entry-arc: _start -> trapped 20
//# arc: trapped -> leaf 20
//# arc: profiled -> leaf 1
//# stdout: ok
//# callgrind: no, it starts a call stack of its own for a signal
#include "test.h"
#include <signal.h>
#include <sys/mman.h>
static char *page;
static volatile int traps, repairs, ticks;
OPAQUE void leaf(void) { BARRIER(); }
OPAQUE void repair(int s) { leaf(); repairs++; CHECK(!mprotect(page, 4096, PROT_READ | PROT_WRITE)); BARRIER(); }
OPAQUE void trapped(int s) { leaf(); traps++; BARRIER(); }
OPAQUE void profiled(int s) { if (!ticks++) leaf(); BARRIER(); }
OPAQUE void touch(void) { *(volatile char *)page = 1; BARRIER(); }
OPAQUE void stop(void) { __asm__ volatile("int3"); BARRIER(); }
int main(void) {
    page = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    signal(SIGSEGV, repair);
    signal(SIGTRAP, trapped);
    signal(SIGPROF, profiled);
    raise(SIGPROF);
    for (int i = 0; i < 20; i++) {
        CHECK(!mprotect(page, 4096, PROT_NONE));
        touch();
        stop();
    }
    CHECK(traps == 20 && repairs == 20);
    printf("ok\n");
    return 0;
}
