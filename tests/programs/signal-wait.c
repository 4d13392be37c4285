// sigwait, signalfd, sigtimedwait, blocked masks and real-time queues: gprofinject takes no signal and changes no mask.
//# others: allowed
//# arc: main -> taken 4
//# arc: main -> mask 3
//# arc: main -> queued 1
//# arc: queued -> handler 10
//# entry-arc: _start -> handler 10
//# stdout: 10 14 12 10 none
//# stdout: ok
//# callgrind: no, it starts a call stack of its own for a signal
#define _GNU_SOURCE
#include "test.h"
#include <signal.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>
static int sum;
OPAQUE void handler(int s, siginfo_t *i, void *c) { sum += i->si_value.sival_int; BARRIER(); }
OPAQUE int taken(int s) { BARRIER(); return s; }
OPAQUE int mask(void) { sigset_t now; int n = 0; sigprocmask(SIG_SETMASK, 0, &now); for (int s = 1; s < 65; s++) n += sigismember(&now, s) == 1; return n; }
OPAQUE void queued(void) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGRTMIN);
    sigprocmask(SIG_UNBLOCK, &one, 0);
    BARRIER();
}
int main(void) {
    sigset_t set;
    int s;
    CHECK(mask() == 0);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigaddset(&set, SIGALRM);
    sigaddset(&set, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &set, 0);
    CHECK(mask() == 4);
    raise(SIGUSR1);
    sigwait(&set, &s);
    printf("%d ", taken(s));
    alarm(1);
    CHECK(sigwaitinfo(&set, 0) == SIGALRM);
    printf("%d ", taken(SIGALRM));
    raise(SIGUSR2);
    struct timespec soon = {0, 1000000};
    s = sigtimedwait(&set, 0, &soon);
    printf("%d ", taken(s));
    int fd = signalfd(-1, &set, 0);
    struct signalfd_siginfo info;
    raise(SIGUSR1);
    CHECK(read(fd, &info, sizeof info) == sizeof info);
    printf("%d ", taken(info.ssi_signo));
    printf("%s\n", sigtimedwait(&set, 0, &soon) < 0 ? "none" : "some");
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGRTMIN, &action, 0);
    for (int i = 0; i < 10; i++) sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = i});
    CHECK(sum == 0);
    queued();
    CHECK(sum == 45 && mask() == 3);
    printf("ok\n");
    return 0;
}
