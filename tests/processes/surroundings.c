// Changes its surroundings as the argument says, then continues, forks and executes itself.
#include "common.h"
#include <dirent.h>
COUNTED static unsigned checksum(void) {
    unsigned sum = 0;
    for (volatile unsigned char *p = (void *)work; p < (unsigned char *)work + 4; p++) sum = sum * 31 + *p;
    return sum;
}
int main(int argc, char **argv) {
    const char *way = argv[1];
    times(work, 3);
    if (!strcmp(way, "after")) {
        check_environment();
        times(other, 11);
        puts("after");
        return 8;
    }
    if (!strcmp(way, "close")) {
        for (int i = 3; i < 1024; i++) close(i);
    }
    if (!strcmp(way, "closefrom")) closefrom(0), open("/dev/null", O_RDWR), dup(0), dup(0);
    if (!strcmp(way, "chdir")) CHECK(!chdir("/"));
    if (!strcmp(way, "chroot")) {
        CHECK(!mkdir("root", 0777) && !chroot("root") && !chdir("/"));
    }
    // With a program (static: there are no libraries) that can be executed there.
    if (!strcmp(way, "chroot-with")) {
        CHECK(!mkdir("root", 0777) && !link(argv[2], "root/program") && !chroot("root") && !chdir("/"));
        argv[2] = "/program";
    }
    if (!strcmp(way, "nobody")) {
        CHECK(!setgroups(0, 0) && !setresgid(65534, 65534, 65534) && !setresuid(65534, 65534, 65534));
    }
    if (!strcmp(way, "nofile")) {
        struct rlimit r = {3, 3};
        CHECK(!setrlimit(RLIMIT_NOFILE, &r));
    }
    if (!strcmp(way, "as")) {
        struct rlimit r = {100 << 20, 100 << 20};
        CHECK(!setrlimit(RLIMIT_AS, &r));
    }
    if (!strcmp(way, "fsize")) {
        struct rlimit r = {0, 0};
        CHECK(!setrlimit(RLIMIT_FSIZE, &r));
    }
    if (!strcmp(way, "nproc")) {
        struct rlimit r = {1, 1};
        CHECK(!setrlimit(RLIMIT_NPROC, &r));
    }
    if (!strcmp(way, "mprotect")) {
        void *page = (void *)((uintptr_t)work & -4096);
        CHECK(!mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC) && !mprotect(page, 4096, PROT_READ | PROT_EXEC));
    }
    if (!strcmp(way, "mlock")) mlockall(MCL_CURRENT | MCL_FUTURE);
    if (!strcmp(way, "clearenv")) clearenv();
    if (!strcmp(way, "environ")) environ = 0;
    if (!strcmp(way, "undumpable")) CHECK(!prctl(PR_SET_DUMPABLE, 0));
    if (!strcmp(way, "newns")) CHECK(!unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS));
    if (!strcmp(way, "newuser")) CHECK(!unshare(CLONE_NEWUSER));
    times(other, 7);
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        times(work, 5);
        if (argc > 2) execl(argv[2], argv[2], "after", (char *)0);
        _exit(4);
    }
    printf("%d %d\n", pid > 0, pid > 0 ? status_of(pid) : errno);
    return 6;
}
