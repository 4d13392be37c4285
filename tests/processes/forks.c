// Calls work() 3 times before the fork and 5 times in the child, other() 7 times in the parent. The argument is the
// way to fork.
#include "common.h"
#include <semaphore.h>

static int child(void *unused) {
    check_environment();
    times(work, 5);
    return 4;
}
static int pid_is_1(void *unused) { CHECK(getpid() == 1); return child(0); }

static pid_t forked;
static void *in_thread(void *way) {
    forked = fork();
    if (!forked) _exit(child(0));
    return 0;
}
COUNTED static void *busy(void *stop) {
    while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED)) late();
    return 0;
}
static void handler(int s) {
    forked = fork();
    if (!forked) _exit(child(0));
}
static char stack[1 << 16] __attribute__((aligned(16)));

int main(int argc, char **argv) {
    const char *way = argv[1];
    times(work, 3);
    pid_t pid = -1;
    if (!strcmp(way, "fork")) {
        if (!(pid = fork())) _exit(child(0));
    } else if (!strcmp(way, "_Fork")) {
        if (!(pid = _Fork())) _exit(child(0));
    } else if (!strcmp(way, "exit")) {
        if (!(pid = fork())) exit(child(0));
    } else if (!strcmp(way, "return")) {
        if (!(pid = fork())) return child(0);
    } else if (!strcmp(way, "syscall-fork")) {
        if (!(pid = syscall(SYS_fork))) _exit(child(0));
    } else if (!strcmp(way, "syscall-clone")) {
        if (!(pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0))) _exit(child(0));
    } else if (!strcmp(way, "syscall-clone-files")) {
        if (!(pid = syscall(SYS_clone, CLONE_FILES | CLONE_FS | SIGCHLD, 0, 0, 0, 0))) _exit(child(0));
    } else if (!strcmp(way, "syscall-clone3")) {
        struct clone_args a = {.exit_signal = SIGCHLD};
        if (!(pid = syscall(SYS_clone3, &a, sizeof a))) _exit(child(0));
    } else if (!strcmp(way, "clone")) {
        pid = clone(child, stack + sizeof stack, SIGCHLD, 0);
    } else if (!strcmp(way, "clone-files")) {
        pid = clone(child, stack + sizeof stack, CLONE_FILES | CLONE_FS | CLONE_PARENT_SETTID | SIGCHLD, 0, &pid);
    } else if (!strcmp(way, "clone-newpid")) {
        pid = clone(pid_is_1, stack + sizeof stack, CLONE_NEWPID | SIGCHLD, 0);
    } else if (!strcmp(way, "unshare-pid")) {
        CHECK(!unshare(CLONE_NEWPID));
        if (!(pid = fork())) {
            CHECK(getpid() == 1);
            _exit(child(0));
        }
    } else if (!strcmp(way, "thread")) {
        pthread_t t;
        pthread_create(&t, 0, in_thread, 0);
        pthread_join(t, 0);
        pid = forked;
    } else if (!strcmp(way, "busy-threads")) {
        int stop = 0;
        pthread_t t, b[4];
        for (int i = 0; i < 4; i++) pthread_create(b + i, 0, busy, &stop);
        pthread_create(&t, 0, in_thread, 0);
        pthread_join(t, 0);
        stop = 1;
        for (int i = 0; i < 4; i++) pthread_join(b[i], 0);
        pid = forked;
    } else if (!strcmp(way, "signal")) {
        signal(SIGUSR1, handler);
        raise(SIGUSR1);
        pid = forked;
    } else if (!strcmp(way, "vfork-exit")) {
        // Its calls count as the parent's.
        if (!(pid = vfork())) {
            times(work, 2);
            _exit(4);
        }
    } else if (!strcmp(way, "clone-vm-vfork")) {
        pid = clone(child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, 0);
    }
    CHECK(pid > 0);
    times(other, 7);
    printf("%d\n", status_of(pid));
    CHECK(wait(0) == -1 && errno == ECHILD);
    check_environment();
    return 6;
}
