// Processes that end within nested calls: the calls that are open then end with the process.
#include "known.h"
#include <pthread.h>
#include <signal.h>

static const char *how;

static NOINLINE void last(void) {
    spin(2000 * SHORT, "main;outer;middle;middle;middle;last");
    // Nothing comes after this, so what it takes to print is a part of it, and small beside the rest.
    counts("main", 1, 1, 1);
    counts("outer", 1, 1, 1);
    counts("middle", 3, 1, 3);
    counts("last", 1, 1, 1);
    counts("done", 10, 10, 0);
    print_spent();
    if (!strcmp(how, "exit")) exit(3);
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
    middle(2);
    __asm__ volatile("");
}

int main(int argc, char **argv) {
    (void)argc;
    how = argv[1];
    outer();
    return 0;
}
