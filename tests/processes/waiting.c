// A program to attach to, whose threads wait in system calls that are made by number. It reads commands as attached.cc
// does. The argument says which threads there are:
//
// calls     Threads that wait for ever, and threads that wait again and again. Prints which of their calls have ended
//           early or with an error: none, if nothing disturbs them.
// alone     None but the main one, which waits for commands.
// handler   A thread whose calls are interrupted by a signal, and whose handler waits as well.
// gs        None, but the main thread uses gs, if the program is compiled with GS. Prints whether gs still leads to its variable.
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "obey.h"
#define OPAQUE __attribute__((noinline, noclone))
static volatile int stop, sink, early, handled, never;
OPAQUE void step(void) { sink++; }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

// The number is not known to the compiler.
static volatile long futex = SYS_futex, sleeps = SYS_nanosleep, polls = SYS_poll, waits = SYS_epoll_wait;
static int epoll;

static void *for_ever(void *way) {
    static int ends[2];
    char c;
    switch ((long)way) {
    case 0: return (void *)syscall(futex, &never, 0, 0, 0, 0, 0);
    case 1: return (void *)syscall(polls, 0, 0, -1);
    case 2: return (void *)(long)pause();
    case 3: pipe(ends); return (void *)(long)read(ends[0], &c, 1);
    default: for (;;) syscall(waits, epoll, &c, 1, -1);
    }
}

static void *again(void *way) {
    const struct timespec ms = {0, 3000000};
    int wanted = 0, *expected = &wanted;
    while (!stop) {
        double start = now();
        long result;
        char events[16];
        switch ((long)way) {
        case 0: result = syscall(futex, expected, 0, 0, &ms, 0, 0) == -1 && errno == ETIMEDOUT ? 0 : 1; break;
        case 1: result = syscall(sleeps, &ms, 0); break;
        case 2: result = syscall(polls, 0, 0, 3); break;
        default: result = syscall(waits, epoll, events, 1, 3);
        }
        if (result || now() - start < 0.002) early |= 1 << (long)way;
    }
    return 0;
}

static void handler(int signal) {
    int saved = errno;
    syscall(polls, 0, 0, 2);
    handled++;
    errno = saved;
}

static void *interrupted(void *argument) {
    while (!stop)
        if (syscall(futex, &never, 0, 0, 0, 0, 0) != -1 || errno != EINTR) early = 1;
    return argument;
}

static void *interrupts(void *thread) {
    while (!stop) {
        int before = handled;
        pthread_kill(*(pthread_t *)thread, SIGUSR1);
        while (handled == before) usleep(500);
        usleep(4000);
    }
    return 0;
}

int main(int argc, char **argv) {
    const char *way = argc > 1 ? argv[1] : "";
    pthread_t thread, timed[4], pair[2];
    int count = 0;
    epoll = syscall(SYS_epoll_create1, 0);
    if (!strcmp(way, "calls")) {
        for (long n = 0; n < 5; n++) pthread_create(&thread, 0, for_ever, (void *)n);
        for (long n = 0; n < 4; n++) pthread_create(&timed[count++], 0, again, (void *)n);
    } else if (!strcmp(way, "handler")) {
        struct sigaction action = {.sa_handler = handler};
        sigaction(SIGUSR1, &action, 0);
        pthread_create(&pair[0], 0, interrupted, 0);
        pthread_create(&pair[1], 0, interrupts, &pair[0]);
    }
#ifdef GS
    static long own = 0x67730a;
    if (!strcmp(way, "gs")) syscall(SYS_arch_prctl, 0x1001 /* ARCH_SET_GS */, &own);
#endif
    OBEY();
    stop = 1;
    for (int n = 0; n < count; n++) pthread_join(timed[n], 0);
    if (!strcmp(way, "handler")) pthread_join(pair[1], 0);
#ifdef GS
    if (!strcmp(way, "gs")) {
        long seen;
        __asm__ volatile("mov %%gs:0, %0" : "=r"(seen));
        printf("%lx\n", seen);
    }
#endif
    printf("early: %x\n", early);
    return 0;
}
