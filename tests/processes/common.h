// What all programs in this folder share: functions whose calls are counted, and the headers.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define COUNTED __attribute__((noinline, noclone, noipa))
COUNTED void work(void) { asm volatile(""); }
COUNTED void other(void) { asm volatile(""); }
COUNTED void late(void) { asm volatile(""); }

static inline void times(void (*f)(void), int n) {
    for (int i = 0; i < n; i++) f();
}

// Ends with status 99 if something is wrong, and prints what.
#define CHECK(what) do { if (!(what)) { dprintf(1, "%s:%d: %s: %m\n", __FILE__, __LINE__, #what); _exit(99); } } while (0)

static inline int status_of(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Nothing of gprofinject's is in the environment.
static inline void check_environment(void) {
    for (char **e = environ; e && *e; e++) {
        CHECK(strncmp(*e, "LD_PRELOAD=", 11) || !strstr(*e, "gprofinject"));
        // The agent's own names (agent/abi/src/lib.rs); the tests have others.
        CHECK(strncmp(*e, "GPROFINJECT_RUN=", 16) && strncmp(*e, "GPROFINJECT_LD_PRELOAD=", 23));
    }
    CHECK(!getenv("LD_PRELOAD") || !strstr(getenv("LD_PRELOAD"), "gprofinject"));
}
