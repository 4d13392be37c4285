// argv: children, how many at once. Each child calls work() its number of times.
#include "common.h"
int main(int argc, char **argv) {
    int children = atoi(argv[1]), together = atoi(argv[2]), running = 0, sum = 0;
    times(work, 1);
    for (int i = 0; i < children; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (!pid) {
            times(work, i + 1);
            _exit(i % 7);
        }
        if (++running < together) continue;
        int status;
        CHECK(wait4(-1, &status, 0, 0) > 0);
        sum += WEXITSTATUS(status);
        running--;
    }
    int status;
    while (wait4(-1, &status, 0, 0) > 0) sum += WEXITSTATUS(status);
    CHECK(errno == ECHILD);
    printf("%d\n", sum);
    return 0;
}
