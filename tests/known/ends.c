// Processes that end within nested calls: the calls that are open then end with the process.
#include "known.h"
#include <pthread.h>
#include <signal.h>

static const char *how;
// When the other thread, if there is one, was in its only call.
static volatile uint64_t began;

static NOINLINE void *asleep(void *unused) {
    (void)unused;
    began = ticks_now();
    for (;;) pause();
    return 0;
}

// A thread sleeps in a call, and this one tries to execute a program that does not exist, which ends nothing.
INLINE void execute_nothing(void) {
    pthread_t thread;
    char *const none[] = {0};
    if (pthread_create(&thread, 0, asleep, 0)) exit(1);
    while (!began) {}
    for (int i = 0; i < 3; i++) {
        execve("/nonexistent/program", none, none);
        spin_only(10 * SHORT);
    }
}

static NOINLINE void last(void) {
    const char *path = "main;outer;middle;middle;middle;last";
    // exit() calls functions that are hooked.
    if (!strcmp(how, "exit") || !strcmp(how, "executes")) spin(2000 * SHORT, path);
    else spin_at_the_end(800 * SHORT, path);
    // Nothing comes after this, so what it takes to print is a part of it, and small beside the rest.
    counts("main", 1, 1, 1);
    counts("outer", 1, 1, 1);
    counts("middle", 3, 1, 3);
    counts("last", 1, 1, 1);
    counts("done", 10, 10, 0);
    if (began) {
        counts("asleep", 1, 1, 1);
        known_add("asleep", ticks_now() - began);
    }
    print_spent();
    if (!strcmp(how, "exit") || !strcmp(how, "executes")) exit(3);
    if (!strcmp(how, "_exit")) _exit(3);
    if (!strcmp(how, "kill")) raise(SIGKILL);
    if (!strcmp(how, "abort")) abort();
    if (!strcmp(how, "segv")) *(volatile int *)0 = 0;
    if (!strcmp(how, "term")) raise(SIGTERM);
    abort();
}

static NOINLINE void middle(int depth) {
    static const char *const paths[] = {"main;outer;middle;middle;middle", "main;outer;middle;middle", "main;outer;middle"};
    spin(100 * SHORT, paths[depth]);
    if (depth) middle(depth - 1);
    else last();
    __asm__ volatile("");
}

static NOINLINE void done(void) { spin(10 * SHORT, "main;outer;done"); }

static NOINLINE void outer(void) {
    for (int i = 0; i < 10; i++) done();
    if (!strcmp(how, "executes")) TIMED("main;outer", execute_nothing());
    middle(2);
    __asm__ volatile("");
}

int main(int argc, char **argv) {
    (void)argc;
    how = argv[1];
    outer();
    return 0;
}
