// Gets queued signals, numbered by another process, while it also has faults of its own and timers. Prints
// whether each number came once and in order.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <unistd.h>

#define KINDS 3
static struct shared { volatile long sent[KINDS], got[KINDS], wrong, faults, handled; volatile int end; } *shared;
static char *page;

__attribute__((noinline)) void handle(int signal, siginfo_t *info, void *context) {
    int kind = signal - SIGRTMIN;
    if (info->si_code != SI_QUEUE || info->si_value.sival_int != ++shared->got[kind]) shared->wrong++;
}

__attribute__((noinline)) void fault(int signal, siginfo_t *info, void *context) {
    if (info->si_addr != page + 8) shared->wrong++;
    shared->handled++;
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

__attribute__((noinline)) void tick(int signal) { __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) long step(long n) { __asm__ volatile("" ::: "memory"); return n + 1; }

static void *busy(void *p) { for (long n = 0;;) n = step(n); }

// One fault after the other.
static void *faulty(void *p) {
    for (;;) {
        mprotect(page, 4096, PROT_NONE);
        shared->faults++;
        page[8]++;
        step(1);
    }
}

static void send(int parent) {
    for (;;) {
        for (int kind = 0; kind < KINDS; kind++) {
            union sigval value = {(int)(shared->sent[kind] + 1)};
            // More than the queue holds would be lost without gprofinject, too.
            if (shared->sent[kind] - shared->got[kind] < 100 && !shared->end && sigqueue(parent, SIGRTMIN + kind, value) == 0)
                shared->sent[kind]++;
        }
        usleep(100);
    }
}

int main(int argc, char **argv) {
    int parent = getpid();
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // One of them at a time, so that their order is known.
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigset_t queued;
    sigemptyset(&queued);
    for (int kind = 0; kind < KINDS; kind++) sigaddset(&queued, SIGRTMIN + kind);
    action.sa_mask = queued;
    for (int kind = 0; kind < KINDS; kind++) sigaction(SIGRTMIN + kind, &action, 0);
    struct sigaction faults = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &faults, 0);
    struct sigaction ticks = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &ticks, 0);
    int child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(0), close(1), close(2);
        send(parent);
    }
    // Only the main thread takes them.
    sigprocmask(SIG_BLOCK, &queued, 0);
    pthread_t thread;
    for (int n = atoi(argv[1]); n > 0; n--) pthread_create(&thread, 0, n == 1 ? faulty : busy, 0);
    sigprocmask(SIG_UNBLOCK, &queued, 0);
    struct itimerval often = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &often, 0);
    puts("ready");
    fflush(stdout);
    char line[16];
    while (read(0, line, sizeof line) > 0) {
        shared->end = 1;
        for (int n = 0; n < 500; n++) usleep(1000);
        int all = shared->wrong == 0;
        for (int kind = 0; kind < KINDS; kind++) all &= shared->sent[kind] > 0 && shared->sent[kind] == shared->got[kind];
        if (atoi(argv[1]) > 0) all &= shared->faults > 0 && shared->faults - shared->handled <= 1;
        if (all) puts("all in order");
        else printf("%ld wrong, %ld of %ld, %ld of %ld faults\n", shared->wrong, shared->got[0], shared->sent[0], shared->handled, shared->faults);
        fflush(stdout);
    }
    kill(child, SIGKILL);
    _exit(0);
}
