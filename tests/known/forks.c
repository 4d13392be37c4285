// Children that a fork makes within nested calls: they continue in inherited frames, whose time since the fork is theirs. And
// programs that execute themselves, one after the other.
#include "known.h"
#include <sys/wait.h>

static NOINLINE void inner(void) {
    spin(10 * SHORT, "main;outer;inner");
    pid_t child = fork();
    // Both the parent and the child are in three calls here, of which the child makes none.
    spin(100 * SHORT, "main;outer;inner");
    if (child == 0) return;
    TIMED("main;outer;inner", waitpid(child, 0, 0));
}

static NOINLINE void outer(void) {
    inner();
    spin(10 * SHORT, "main;outer");
}

static NOINLINE void executed(void) { spin(100 * SHORT, "main;executed"); }

static NOINLINE void vforked(char **argv) {
    uint64_t start = known_begin();
    pid_t child = vfork();
    if (child == 0) {
        execl(argv[0], argv[0], "last", (char *)0);
        _exit(1);
    }
    waitpid(child, 0, 0);
    known_add("main;vforked", known_end() - start);
}

int main(int argc, char **argv) {
    pid_t self = getpid();
    if (argc > 1 && !strcmp(argv[1], "last")) {
        executed();
        counts("executed", 1, 1, 0);
        print_spent();
        return 0;
    }
    if (argc > 1 && atoi(argv[1])) {
        char number[12];
        executed();
        counts("executed", 1, 1, 0);
        print_spent();
        snprintf(number, sizeof number, "%d", atoi(argv[1]) - 1);
        execl(argv[0], argv[0], atoi(number) ? number : "last", (char *)0);
        return 1;
    }
    for (int i = 0; i < 10 && getpid() == self; i++) outer();
    if (getpid() != self) return 0;
    vforked(argv);
    counts("outer", 10, 10, 0);
    counts("inner", 10, 10, 0);
    // The children's part of these calls is shorter, but is no call of its own.
    dprintf(1, "least inner %u\nleast outer %u\n", 110 * SHORT, 120 * SHORT);
    counts("vforked", 1, 1, 0);
    print_spent();
    return 0;
}
