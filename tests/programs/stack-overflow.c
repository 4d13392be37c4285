// A stack overflow that the program survives: its handler runs on an alternate stack and leaves by siglongjmp.
//# others: allowed
//# arc: main -> attempt 20
//# arc: main -> leaf 20
//# stdout: ok
//# callgrind: no, it starts a call stack of its own for a signal
#include "test.h"
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
static sigjmp_buf there;
static volatile long depth;
OPAQUE void leaf(void) { BARRIER(); }
OPAQUE void handler(int s) { siglongjmp(there, 1); }
OPAQUE long endless(long n) { volatile char room[100]; room[n % 100] = 1; depth = n; long r = endless(n + 1); BARRIER(); return r + room[0]; }
OPAQUE int attempt(void) { if (sigsetjmp(there, 1)) return 1; endless(0); return 0; }
int main(void) {
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(&stack, 0);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    sigaction(SIGSEGV, &action, 0);
    for (int i = 0; i < 20; i++) { CHECK(attempt() == 1 && depth > 1000); leaf(); }
    printf("ok\n");
    return 0;
}
