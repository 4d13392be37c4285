// backtrace() at every single instruction of calls, returns, tail calls and callbacks: each finds its way to main.
//# not: musl static
//# flags: -fexceptions -fasynchronous-unwind-tables
//# others: allowed
//# arc: main -> steps 3
//# arc: steps -> with_frame 30
//# arc: steps -> saved 30
//# arc: steps -> floats 30
//# arc: floats -> floats 90
//# stdout: ok
//# callgrind: no, it starts a call stack of its own for a signal
#define _GNU_SOURCE
#include "test.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <stdlib.h>
#include <ucontext.h>
enum { TRAP_FLAG = 0x100 };
static volatile int steps_done, bad, shown;
static void *main_from, *main_to;
static volatile int stop;
static void handler(int s, siginfo_t *info, void *context) {
    ucontext_t *u = context;
    void *frames[64];
    int n = backtrace(frames, 64), found = 0;
    for (int i = 0; i < n; i++) found |= frames[i] >= main_from && frames[i] < main_to;
    steps_done++;
    if (!found) {
        bad++;
        if (getenv("SHOW") && shown++ < 30) {
            Dl_info at = {0};
            unsigned char *pc = (void *)u->uc_mcontext.gregs[REG_RIP];
            dladdr(pc, &at);
            printf("%p %s %s+%ld, %d frames:", pc, at.dli_fname, at.dli_sname, (long)(pc - (unsigned char *)at.dli_saddr), n);
            for (int i = 0; i < 12; i++) printf(" %02x", pc[i]);
            printf("\n");
        }
    }
    if (stop) u->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}
OPAQUE long one(long x) { BARRIER(); return x + 1; }
OPAQUE long with_frame(long a, long b, long c) { volatile long v[30]; v[0] = a; v[1] = b; v[c & 15] = one(a); return v[0] + v[1]; }
OPAQUE long saved(long a, long b, long c, long d) { long r = one(a) + one(b); r += one(c) * one(d); return r + a * b + c * d; }
OPAQUE long two(long x) { long r = one(x); BARRIER(); return r + 1; }
OPAQUE long tail(long x) { return two(x + 1); }
OPAQUE int compare(const void *a, const void *b) { return *(int *)a - *(int *)b; }
OPAQUE double floats(double x, int n) { return n ? floats(x * 2, n - 1) + 1 : x; }
OPAQUE void steps(void) {
    int v[3] = {3, 1, 2};
    stop = 0;
    __asm__ volatile("sub $128, %%rsp\n pushfq\n orl $0x100, (%%rsp)\n popfq\n add $128, %%rsp" ::: "cc", "memory");
    for (int i = 0; i < 10; i++) { two(i); tail(i); with_frame(i, i, i); saved(i, 2, 3, 4); floats(i, 3); }
    qsort(v, 3, sizeof *v, compare);
    stop = 1;
    BARRIER();
}
int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    void *frames[4];
    backtrace(frames, 4);
    sigaction(SIGTRAP, &action, 0);
    __asm__("lea main(%%rip), %0\n lea 9f(%%rip), %1" : "=r"(main_from), "=r"(main_to));
    for (int i = 0; i < 3; i++) steps();
    CHECK(steps_done > 1000);
    if (bad) printf("%d of %d backtraces end early\n", bad, steps_done);
    printf("ok\n");
    __asm__ volatile("9:");
    return 0;
}
