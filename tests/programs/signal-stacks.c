// Alternate stacks: as small as the kernel allows, exchanged between signals, and left by siglongjmp.
//# not: musl
//# others: allowed
//# arc: main -> small 50
//# arc: small -> handler 50
//# arc: handler -> one 400
//# entry-arc: _start -> handler 400
//# arc: main -> swapped 300
//# arc: swapped -> handler 300
//# arc: main -> escaped 50
//# arc: escaped -> handler 50
//# arc: two -> leave 50
//# callgrind: no, it starts a call stack of its own for a signal
#define _GNU_SOURCE
#include "test.h"
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static sigjmp_buf there;
static volatile int escape;
OPAQUE void leave(void) { siglongjmp(there, 1); }
OPAQUE int two(int x) { if (escape) leave(); BARRIER(); return x + 1; }
OPAQUE int one(int x) { int r = two(x); BARRIER(); return r; }
OPAQUE void handler(int s) { CHECK(one(s) == s + 1); }
static void use(void *at, size_t size) { stack_t s = {.ss_sp = at, .ss_size = size}; CHECK(!sigaltstack(&s, 0)); }
OPAQUE void small(void) { raise(SIGUSR1); BARRIER(); }
OPAQUE void swapped(void) { raise(SIGUSR1); BARRIER(); }
OPAQUE void escaped(void) { if (!sigsetjmp(there, 1)) { escape = 1; raise(SIGUSR1); } escape = 0; }
int main(void) {
    // What the kernel itself needs, what libc's kill needs not, and 2 KiB for the handler.
    long least = sysconf(_SC_MINSIGSTKSZ) + 2048;
    char *room = mmap(0, 3 << 26, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, 0);
    for (int i = 0; i < 50; i++) {
        // Filled to its end: nothing may be written below it.
        char *at = room + 4096;
        for (int n = 0; n < 4096; n++) at[-1 - n] = 42;
        use(at, least);
        small();
        for (int n = 0; n < 4096; n++) CHECK(at[-1 - n] == 42);
        // Each in another window of 64 MiB.
        for (int n = 0; n < 3; n++) { use(room + ((long)n << 26) + (i << 12), 1 << 16); swapped(); }
        for (int n = 0; n < 3; n++) { use(malloc(1 << 14), 1 << 14); swapped(); }
        escaped();
    }
    return 0;
}
