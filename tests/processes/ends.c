// Calls work() 10 times and ends as the argument says.
#include "common.h"
static void on_exit_called(void) { times(other, 2); }
static void *thread(void *unused) {
    usleep(20000);
    times(work, 5);
    exit(7);
}
static void *execute(void *path) {
    execl("/bin/echo", "echo", "executed", (char *)0);
    return 0;
}
int main(int argc, char **argv) {
    const char *way = argv[1];
    setlinebuf(stdout);
    puts("begins");
    times(work, 10);
    if (!strcmp(way, "exit")) exit(3);
    if (!strcmp(way, "return")) return 3;
    if (!strcmp(way, "_exit")) _exit(3);
    if (!strcmp(way, "syscall")) syscall(SYS_exit_group, 3);
    if (!strcmp(way, "atexit")) { atexit(on_exit_called); return 3; }
    if (!strcmp(way, "quick_exit")) { at_quick_exit(on_exit_called); quick_exit(3); }
    if (!strcmp(way, "abort")) abort();
    if (!strcmp(way, "trap")) __builtin_trap();
    if (!strcmp(way, "segv")) *(volatile int *)8 = 1;
    if (!strcmp(way, "overflow")) { volatile char a[1 << 20]; for (;;) main(2, (char *[]){"", "overflow", 0}); }
    if (!strcmp(way, "pthread_exit")) { pthread_t t; pthread_create(&t, 0, thread, 0); pthread_exit(0); }
    if (!strcmp(way, "pthread_exit-alone")) pthread_exit(0);
    if (!strcmp(way, "exec")) execute(0);
    if (!strcmp(way, "exec-thread")) { pthread_t t; pthread_create(&t, 0, execute, 0); pthread_join(t, 0); }
    if (!strcmp(way, "stop")) { raise(SIGSTOP); return 3; }
    if (!strcmp(way, "oom")) {
        // As the kernel's out-of-memory killer does: SIGKILL, at some instruction.
        int pid = getpid();
        if (!vfork()) { kill(pid, SIGKILL); _exit(0); }
        for (;;) late();
    }
    if (!strcmp(way, "pipe")) { int p[2]; pipe(p); close(p[0]); write(p[1], "x", 1); }
    if (atoi(way)) { kill(getpid(), atoi(way)); pause(); }
    return 99;
}
