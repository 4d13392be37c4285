// daemon(3), a double fork with setsid, a child that outlives the first process.
#include "common.h"
int main(int argc, char **argv) {
    times(work, 3);
    if (!strcmp(argv[1], "daemon")) {
        CHECK(!daemon(1, 0));
        usleep(300000);
        times(work, 5);
        return 0;
    }
    if (!strcmp(argv[1], "double")) {
        pid_t pid = fork();
        if (!pid) {
            setsid();
            if (fork()) _exit(0);
            for (int i = 0; i < 256; i++) close(i);
            usleep(300000);
            times(work, 5);
            _exit(3);
        }
        return status_of(pid) + 2;
    }
    if (!strcmp(argv[1], "orphan")) {
        pid_t parent = getpid();
        if (!fork()) {
            for (int i = 0; getppid() == parent && i < 3000; i++) usleep(1000);
            CHECK(getppid() != parent);
            times(work, 5);
            sleep(1);
            times(other, 5);
            dprintf(1, "orphan ends\n");
            _exit(3);
        }
        return 2;
    }
    if (!strcmp(argv[1], "death")) {
        // The child is killed when its parent ends.
        int ends[2];
        CHECK(!pipe(ends));
        if (!fork()) {
            CHECK(!prctl(PR_SET_PDEATHSIG, SIGKILL));
            times(work, 5);
            CHECK(write(ends[1], "x", 1) == 1);
            pause();
            _exit(3);
        }
        char c;
        CHECK(read(ends[0], &c, 1) == 1);
        return 2;
    }
    if (!strcmp(argv[1], "ignored")) {
        signal(SIGCHLD, SIG_IGN);
        for (int i = 0; i < 5; i++) {
            if (!fork()) {
                times(work, 5);
                _exit(3);
            }
        }
        CHECK(wait(0) == -1 && errno == ECHILD);
        return 2;
    }
    return 1;
}
