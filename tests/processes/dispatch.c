// argv: how system call user dispatch is switched on: prctl, syscall, or instruction (one of the program's own); which calls are exempt: none, or
// range (those of a part of the program); what is done afterwards: none, fork, thread. While the selector blocks, functions are called
// for the first time, on new pages of the stack.
#include "common.h"
#include <ucontext.h>
#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif
static volatile char selector;
static volatile int traps, others;
static void trapped(int signal, siginfo_t *info, void *context) {
    selector = 0;
    traps++;
    others += info->si_syscall != SYS_getppid;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = 4242;
}
static long make(long number, long a, long b, long c, long d, long e) {
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    return result;
}
__attribute__((noinline)) static int deep(int n) {
    char page[3000];
    __asm__ volatile("" : : "r"(page) : "memory");
    return n ? deep(n - 1) + 1 : 0;
}
static void *thread(void *unused) { times(late, 9); return 0; }
int main(int argc, char **argv) {
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &action, 0);
    // The kernel demands that the length is 0 if the start is.
    long from = strcmp(argv[2], "range") ? 0 : (long)trapped, len = from ? 16 : 0;
    times(work, 3);
    if (!strcmp(argv[1], "prctl")) CHECK(!prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, from, len, &selector));
    if (!strcmp(argv[1], "syscall")) CHECK(!syscall(SYS_prctl, PR_SET_SYSCALL_USER_DISPATCH, 1, from, len, &selector));
    if (!strcmp(argv[1], "instruction")) CHECK(!make(SYS_prctl, PR_SET_SYSCALL_USER_DISPATCH, 1, from, len, (long)&selector));
    CHECK(prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, 8, 0, &selector) == -1 && errno == EINVAL);
    selector = 1;
    times(other, 7);
    times(work, 2);
    CHECK(deep(500) == 500);
    CHECK(make(SYS_getppid, 0, 0, 0, 0, 0) == 4242);
    CHECK(!selector);
    if (!strcmp(argv[3], "thread")) {
        pthread_t t;
        CHECK(!pthread_create(&t, 0, thread, 0));
        CHECK(!pthread_join(t, 0));
    }
    if (!strcmp(argv[3], "fork")) {
        pid_t pid = fork();
        if (!pid) {
            selector = 1; // a child inherits no dispatch
            times(late, 9);
            times(work, 9);
            _exit(2);
        }
        printf("%d\n", status_of(pid));
    }
    CHECK(!prctl(PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0));
    selector = 1;
    printf("%d %d\n", traps, others);
    return 6;
}
