// The counts that a profile must show, by whatever a program is built for profiling. Arguments: how it ends.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>
#define OPAQUE __attribute__((noinline, noclone))
OPAQUE int twice(int x) { __asm__ volatile(""); return 2 * x; }
OPAQUE int once(int x) { return twice(x) + twice(x + 1); }
OPAQUE static int descending(const void *a, const void *b) { return *(const int *)b - *(const int *)a; }
OPAQUE int last(void) { __asm__ volatile(""); return 1; }
static void at_exit(void) { last(); }
int main(int argc, char **argv) {
    const char *way = argc > 1 ? argv[1] : "return";
    struct itimerval timer;
    struct sigaction action;
    getitimer(ITIMER_PROF, &timer);
    sigaction(SIGPROF, 0, &action);
    if (argc > 2) printf("a timer %d, a handler %d\n", timer.it_interval.tv_usec != 0, action.sa_handler != SIG_DFL);
    fflush(stdout);
    int sum = 0, pair[] = {1, 2};
    for (int i = 0; i < 1000; i++) sum += once(i);
    qsort(pair, 2, sizeof *pair, descending);
    if (chdir("elsewhere") != 0 && argc > 2) return 1;
    atexit(at_exit);
    if (!strcmp(way, "_exit")) _exit(sum & 1);
    if (!strcmp(way, "kill")) kill(getpid(), SIGKILL);
    if (!strcmp(way, "segv")) *(volatile int *)8 = 1;
    return sum & 1;
}
