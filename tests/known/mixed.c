// Calls that are too short to be measured beside long ones, for --min-time: loops of them, recursion, tail calls, signal handlers, threads,
// jumps, and a function whose calls become long. All calls are counted, and the times of the long ones are known.
#include "known.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

#define ROUNDS 40
#define TINY 5000
#define LATER 6000

static volatile uint64_t sink;

static NOINLINE void tiny(void) { sink++; }

// Two short calls in one frame.
static NOINLINE __attribute__((optimize("optimize-sibling-calls"))) void hop(void) {
    sink++;
    tiny();
}

static NOINLINE uint64_t fib(unsigned n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

static NOINLINE void far(void) {
    spin(SHORT, "far");
    tiny();
}

static volatile uint64_t handled;

static NOINLINE void inner(void) { spin(SHORT / 8, "handle;inner"); }

static NOINLINE void handle(int signal) {
    (void)signal;
    handled++;
    tiny();
    inner();
    tiny();
}

static jmp_buf place;

static NOINLINE void leap(int i) {
    tiny();
    if (i % 3 == 0) longjmp(place, 1);
}

static NOINLINE void leaps(void) {
    for (volatile int i = 0; i < 900; i++)
        if (!setjmp(place)) leap(i);
}

// Short at first, and long later.
static NOINLINE void shifting(uint64_t ticks) {
    if (ticks) spin(ticks, "shifting");
}

static NOINLINE void work(void) {
    for (int i = 0; i < TINY; i++) tiny();
    for (int i = 0; i < TINY; i++) hop();
    far();
    sink += fib(16);
}

static NOINLINE void *other(void *unused) {
    for (int i = 0; i < ROUNDS; i++) work();
    return unused;
}

int main(void) {
    struct sigaction action = { .sa_handler = handle };
    stack_t stack = { .ss_sp = malloc(1 << 16), .ss_size = 1 << 16 };
    sigaltstack(&stack, 0);
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR1, &action, 0);
    action.sa_flags = 0;
    sigaction(SIGUSR2, &action, 0);
    pthread_t thread;
    pthread_create(&thread, 0, other, 0);
    for (int i = 0; i < ROUNDS; i++) {
        work();
        raise(i % 2 ? SIGUSR1 : SIGUSR2);
    }
    leaps();
    for (int i = 0; i < 50000; i++) shifting(0);
    for (int i = 0; i < LATER; i++) shifting(SHORT / 10);
    pthread_join(thread, 0);
    counts("tiny", 2 * ROUNDS * (2 * TINY + 1) + 2 * ROUNDS + 900, 2 * ROUNDS * (2 * TINY + 1) + 2 * ROUNDS + 900, 0);
    counts("hop", 2 * ROUNDS * TINY, 2 * ROUNDS * TINY, 0);
    counts("far", 2 * ROUNDS, 2 * ROUNDS, 0);
    counts("handle", ROUNDS, ROUNDS, 0);
    counts("inner", ROUNDS, ROUNDS, 0);
    counts("leap", 900, 900, 0);
    counts("shifting", 50000 + LATER, 50000 + LATER, 0);
    print_spent();
    return handled == ROUNDS ? 0 : 1;
}
