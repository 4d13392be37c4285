/* Knows its own slowest calls: prints for each call of serve() that was slow how long it took by its own clock, and what it did.

   slow NANOSECONDS KIND THREAD    a call of serve() by a thread of this number
   calls NUMBER                    all calls of serve()

   Arguments: threads N: N threads; forks N: N children; killed: the process kills itself within a call; leaves N: each call makes N calls of
   leaf(); paths: each call takes 20,000 paths; loop: goes on until it is killed. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SEPARATE __attribute__((noinline, noclone))

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

static __thread volatile unsigned long sink;
static __thread jmp_buf back;
static int leaves;

SEPARATE void leaf(int number) { sink += number; }

SEPARATE void work(long ns) {
    for (long end = now() + ns; now() < end;)
        sink++;
}

SEPARATE void nap(long ns) {
    struct timespec time = {ns / 1000000000, ns % 1000000000};
    nanosleep(&time, NULL);
    sink++;
}

SEPARATE void deep(int depth, long ns) {
    if (depth > 0)
        deep(depth - 1, ns);
    else
        work(ns);
    sink++;
}

SEPARATE void leave(long ns) {
    nap(ns);
    longjmp(back, 1);
}

#define TEN(F, n) F(n##0) F(n##1) F(n##2) F(n##3) F(n##4) F(n##5) F(n##6) F(n##7) F(n##8) F(n##9)
#define HUNDRED(F) TEN(F, 0) TEN(F, 1) TEN(F, 2) TEN(F, 3) TEN(F, 4) TEN(F, 5) TEN(F, 6) TEN(F, 7) TEN(F, 8) TEN(F, 9)
#define INNER(n) SEPARATE void inner_##n(void) { sink += 1##n; }
HUNDRED(INNER)
#define CALL_INNER(n) inner_##n();
SEPARATE void all_inner(void) { HUNDRED(CALL_INNER) }
#define OUTER(n) SEPARATE void outer_##n(void) { all_inner(); sink += 2##n; }
HUNDRED(OUTER)
#define CALL_OUTER(n) outer_##n();
SEPARATE void first_outer(void) { HUNDRED(CALL_OUTER) }
SEPARATE void second_outer(void) { HUNDRED(CALL_OUTER) sink++; }

enum kind { ORDINARY, WORK, NAP, DEEP, LEFT, LEAVES, PATHS, KILLED };
static const char *const names[] = {"ordinary", "work", "nap", "deep", "left", "leaves", "paths", "killed"};

SEPARATE void serve(enum kind kind, long ns) {
    work(20000);
    switch (kind) {
    case WORK: work(ns); break;
    case NAP: nap(ns); break;
    case DEEP: deep(5, ns); break;
    case LEFT: leave(ns); break;
    case LEAVES: for (int i = 0; i < leaves; i++) leaf(i); break;
    case PATHS: first_outer(); second_outer(); break;
    case KILLED: nap(ns); kill(getpid(), SIGKILL); break;
    default: break;
    }
    sink++;
}

/* Serves a request, and prints how long that took if it was slow. */
SEPARATE void request(enum kind kind, long ns) {
    long began = now();
    if (!setjmp(back))
        serve(kind, ns);
    long took = now() - began;
    if (kind != ORDINARY) {
        char line[100];
        int len = snprintf(line, sizeof line, "slow %ld %s %ld\n", took, names[kind], syscall(SYS_gettid));
        if (write(1, line, len) < 0)
            abort();
    }
}

static void *thread(void *number) {
    long n = (long)number;
    for (int i = 0; i < 200; i++) {
        enum kind kind = ORDINARY;
        if (i == 40) kind = WORK;
        if (i == 80) kind = NAP;
        if (i == 120) kind = DEEP;
        if (i == 160) kind = LEFT;
        request(kind, 10000000 + 4000000 * kind + 1000000 * n);
    }
    return NULL;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "threads";
    long n = argc > 2 ? atol(argv[2]) : 2;
    if (!strcmp(mode, "threads")) {
        pthread_t threads[16];
        for (long i = 0; i < n; i++)
            pthread_create(&threads[i], NULL, thread, (void *)i);
        for (long i = 0; i < n; i++)
            pthread_join(threads[i], NULL);
        printf("calls %ld\n", 200 * n);
    } else if (!strcmp(mode, "forks")) {
        for (long i = 0; i < n; i++)
            if (fork() == 0) {
                thread((void *)i);
                _exit(0);
            }
        while (wait(NULL) > 0)
            ;
        printf("calls %ld\n", 200 * n);
    } else if (!strcmp(mode, "killed")) {
        for (int i = 0; i < 10; i++)
            request(ORDINARY, 0);
        request(KILLED, 50000000);
    } else if (!strcmp(mode, "leaves")) {
        leaves = n;
        for (int i = 0; i < 400; i++)
            request(LEAVES, 0);
        printf("calls 400\n");
    } else if (!strcmp(mode, "paths")) {
        for (int i = 0; i < 5; i++)
            request(PATHS, 0);
    } else if (!strcmp(mode, "loop")) {
        for (;;)
            thread((void *)0);
    }
    return 0;
}
