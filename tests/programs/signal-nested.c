// Handlers within handlers, on one alternate stack, on the interrupted one, and left by siglongjmp.
//# others: allowed
//# arc: main -> raised 100
//# arc: raised -> first 100
//# arc: escaped -> first 100
//# arc: first -> second 200
//# arc: second -> third 200
//# arc: third -> leaf 100
//# entry-arc: _start -> first 200
//# entry-arc: _start -> second 200
//# entry-arc: _start -> third 200
//# arc: main -> escaped 100
//# arc: escaped -> sort 100
//# arc: sort -> compare 100
//# entry-arc: _start -> compare 100
//# arc: escaped -> leaf 100
//# callgrind: no, it starts a call stack of its own for a signal
#include "test.h"
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
static sigjmp_buf there;
static volatile int escape;
OPAQUE void leaf(void) { BARRIER(); }
OPAQUE int compare(const void *a, const void *b) { BARRIER(); return *(int *)a - *(int *)b; }
OPAQUE int sort(void) { int v[2] = {2, 1}; qsort(v, 2, sizeof *v, compare); BARRIER(); return v[0]; }
OPAQUE void third(int s) { if (escape) siglongjmp(there, 1); leaf(); BARRIER(); }
OPAQUE void second(int s) { raise(SIGWINCH); BARRIER(); }
OPAQUE void first(int s) { raise(SIGUSR2); BARRIER(); }
OPAQUE void raised(void) { raise(SIGUSR1); BARRIER(); }
OPAQUE void escaped(void) {
    if (!sigsetjmp(there, 1)) { escape = 1; raise(SIGUSR1); CHECK(0); }
    // The handlers' frames are gone: the comparison's caller is the sort that runs now.
    escape = 0;
    CHECK(sort() == 1);
    leaf();
}
static void on(int s, void (*f)(int), int flags) {
    struct sigaction action = {.sa_handler = f, .sa_flags = flags};
    CHECK(!sigaction(s, &action, 0));
}
int main(void) {
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    CHECK(!sigaltstack(&stack, 0));
    on(SIGUSR1, first, SA_ONSTACK);
    on(SIGUSR2, second, 0);
    on(SIGWINCH, third, SA_ONSTACK);
    for (int i = 0; i < 100; i++) raised();
    for (int i = 0; i < 100; i++) escaped();
    return 0;
}
