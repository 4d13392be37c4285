// A program that does what limits refuse, under limits that it has or that it sets: makes a thread, forks, takes memory, writes a file, and
// executes a program. It prints what it was allowed to do, and the limits that it sees.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline, noclone)) void work(void) { asm volatile(""); }
__attribute__((noinline, noclone)) void other(void) { asm volatile(""); }
__attribute__((noinline, noclone)) void late(void) { asm volatile(""); }

static void *thread(void *argument) {
    for (int i = 0; i < 5; i++)
        late();
    return argument;
}

static void make_thread(void) {
    pthread_t made;
    int error = pthread_create(&made, 0, thread, 0);
    printf("thread: %s\n", strerror(error));
    if (!error)
        pthread_join(made, 0);
}

static void make_child(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        other();
        _exit(4);
    }
    int status = -1;
    if (child < 0)
        printf("fork: %s\n", strerror(errno));
    else if (waitpid(child, &status, 0) == child)
        printf("child: %x\n", status);
}

static void take_memory(void) {
    const size_t piece = 64 << 10, most = 64 << 20;
    size_t taken = 0;
    for (char *at; taken < most && (at = malloc(piece)); taken += piece)
        memset(at, 1, piece);
    printf("memory: %s\n", taken < most ? "not all" : "all");
}

static void write_file(void) {
    signal(SIGXFSZ, SIG_IGN);
    int file = open("written", O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0) {
        printf("file: %s\n", strerror(errno));
        return;
    }
    char bytes[4096] = {0};
    ssize_t written = write(file, bytes, sizeof bytes);
    printf("file: %zd\n", written);
    close(file);
}

static void show_limits(void) {
    for (int resource = 0; resource < RLIM_NLIMITS; resource++) {
        struct rlimit limit, again;
        getrlimit(resource, &limit);
        prlimit(0, resource, 0, &again);
        printf("%d: %lu %lu %d\n", resource, limit.rlim_cur, limit.rlim_max, !memcmp(&limit, &again, sizeof limit));
    }
    printf("policy: %d\n", sched_getscheduler(0));
}

// limited [RESOURCE SOFT HARD]... [thread] [fork] [memory] [file] [exec PROGRAM ARGS...]
int main(int count, char **arguments) {
    for (int i = 0; i < 3; i++)
        work();
    for (int at = 1; at < count; at++) {
        const char *what = arguments[at];
        if (!strcmp(what, "thread"))
            make_thread();
        else if (!strcmp(what, "fork"))
            make_child();
        else if (!strcmp(what, "memory"))
            take_memory();
        else if (!strcmp(what, "file"))
            write_file();
        else if (!strcmp(what, "exec")) {
            fflush(stdout);
            execv("./missing", arguments + at + 1);
            execv(arguments[at + 1], arguments + at + 1);
            printf("exec: %s\n", strerror(errno));
            return 9;
        } else if (at + 2 < count) {
            struct rlimit limit = {strtoul(arguments[at + 1], 0, 0), strtoul(arguments[at + 2], 0, 0)};
            if (setrlimit(atoi(what), &limit))
                printf("setrlimit: %s\n", strerror(errno));
            at += 2;
        }
    }
    show_limits();
    return 6;
}
