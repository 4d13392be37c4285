// argv: a program to be executed by a child after the process has refused itself new code (PR_SET_MDWE), which is inherited.
#include "common.h"
int main(int argc, char **argv) {
    times(work, 3);
    CHECK(!prctl(65, 1, 0, 0, 0));
    times(other, 7);
    pid_t pid = fork();
    if (!pid) {
        execl(argv[1], argv[1], (char *)0);
        _exit(9);
    }
    printf("%d\n", status_of(pid));
    return 4;
}
