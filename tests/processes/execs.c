// argv[1]: the way to execute; argv[2]...: what. With one more argument "again", it is the executed program.
#include "common.h"
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#ifndef __GLIBC__
// musl has neither of these functions.
static int execveat(int folder, const char *path, char *const *arguments, char *const *environment, int flags) {
    return syscall(SYS_execveat, folder, path, arguments, environment, flags);
}
static int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t *actions, int first) {
    return posix_spawn_file_actions_addclose(actions, first);
}
#endif
// Copies a program to the descriptor `to`.
static void copy(const char *program, int to) {
    int from = open(program, O_RDONLY);
    struct stat s;
    CHECK(from >= 0 && to >= 0 && !fstat(from, &s) && sendfile(to, from, 0, s.st_size) == s.st_size);
    CHECK(!fchmod(to, 0755) && !close(from));
}
// The kernel's name for a descriptor, in a folder.
static char *name_of(const char *folder, int fd) {
    char *name;
    CHECK(fd >= 0 && asprintf(&name, "%s/%d", folder, fd) > 0);
    return name;
}
static void *in_thread(void *v) {
    execv(((char **)v)[0], (char **)v);
    return 0;
}
int main(int argc, char **argv) {
    const char *way = argv[1];
    if (!strcmp(way, "again")) {
        check_environment();
        times(other, 11);
        for (int i = 2; i < argc; i++) puts(argv[i]);
        return 8;
    }
    times(work, 3);
    if (!strcmp(way, "execv")) execv(argv[2], argv + 2);
    if (!strcmp(way, "execvp")) execvp(argv[2], argv + 2);
    if (!strcmp(way, "execve-null")) execve(argv[2], argv + 2, NULL);
    if (!strcmp(way, "execve-empty")) execve(argv[2], argv + 2, (char *[]){NULL});
    if (!strcmp(way, "execve-no-argv")) execve(argv[2], (char *[]){NULL}, environ);
    if (!strcmp(way, "execle")) execle(argv[2], argv[2], argv[3], (char *)0, (char *[]){"A=1", NULL});
    if (!strcmp(way, "execve-huge")) {
        static char *env[2001];
        for (int i = 0; i < 2000; i++) CHECK(asprintf(env + i, "V%d=%0500d", i, i) > 0);
        execve(argv[2], argv + 2, env);
    }
    if (!strcmp(way, "execve-long")) {
        // One variable of nearly the greatest length.
        static char text[131071];
        memset(text, 'x', sizeof text - 1);
        memcpy(text, "X=", 2);
        execve(argv[2], argv + 2, (char *[]){text, NULL});
    }
    if (!strcmp(way, "preload")) {
        setenv("LD_PRELOAD", argv[2], 1);
        execv(argv[3], argv + 3);
    }
    if (!strcmp(way, "fexecve")) {
        int fd = open(argv[2], O_RDONLY | O_CLOEXEC);
        CHECK(fd >= 0);
        fexecve(fd, argv + 2, environ);
    }
    if (!strcmp(way, "execveat")) {
        int fd = open(".", O_PATH);
        CHECK(fd >= 0);
        execveat(fd, argv[2], argv + 2, environ, 0);
    }
    if (!strcmp(way, "memfd")) {
        int from = open(argv[2], O_RDONLY), fd = memfd_create("x", MFD_CLOEXEC);
        struct stat s;
        CHECK(from >= 0 && fd >= 0 && !fstat(from, &s) && sendfile(fd, from, 0, s.st_size) == s.st_size);
        fexecve(fd, argv + 2, environ);
    }
    if (!strcmp(way, "self")) execv("/proc/self/exe", argv + 2);
    if (!strcmp(way, "thread-self")) execv("/proc/thread-self/exe", argv + 2);
    if (!strcmp(way, "self-fd")) execv(name_of("/proc/self/fd", open(argv[2], O_RDONLY)), argv + 2);
    if (!strcmp(way, "dev-fd")) execv(name_of("/dev/fd", open(argv[2], O_PATH)), argv + 2);
    if (!strcmp(way, "empty-path")) execveat(open(argv[2], O_PATH), "", argv + 2, environ, AT_EMPTY_PATH);
    if (!strcmp(way, "syscall")) syscall(SYS_execve, argv[2], argv + 2, environ);
    if (!strcmp(way, "syscall-at"))
        syscall(SYS_execveat, open(argv[2], O_PATH), "", argv + 2, environ, AT_EMPTY_PATH);
    if (!strcmp(way, "memfd-path")) {
        int fd = memfd_create("x", 0);
        copy(argv[2], fd);
        execv(name_of("/proc/self/fd", fd), argv + 2);
    }
    if (!strcmp(way, "deleted")) {
        char name[] = "deleted-XXXXXX";
        int fd = mkstemp(name);
        copy(argv[2], fd);
        CHECK(!close(fd) && (fd = open(name, O_RDONLY | O_CLOEXEC)) >= 0 && !unlink(name));
        fexecve(fd, argv + 2, environ);
    }
    if (!strcmp(way, "tmpfile")) {
        int fd = open(".", O_TMPFILE | O_RDWR, 0700), again;
        if (fd < 0) return 99;
        copy(argv[2], fd);
        CHECK((again = open(name_of("/proc/self/fd", fd), O_RDONLY)) >= 0 && !close(fd));
        execv(name_of("/proc/self/fd", again), argv + 2);
    }
    // argv[2]: the folder with another program of that name, for all other processes.
    if (!strcmp(way, "mounts") || !strcmp(way, "mounts-script")) {
        char name[4000];
        if (unshare(CLONE_NEWNS)) return 99;
        CHECK(!mount("none", "/", 0, MS_REC | MS_PRIVATE, 0));
        CHECK(snprintf(name, sizeof name, "%s/program", argv[2]) > 0);
        CHECK(!mount("tmpfs", argv[3], "tmpfs", 0, 0));
        int to = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
        copy("/proc/self/exe", to);
        CHECK(!close(to));
        if (!strcmp(way, "mounts-script")) {
            char script[4000];
            CHECK(snprintf(script, sizeof script, "%s/script", argv[3]) > 0);
            FILE *f = fopen(script, "w");
            CHECK(f && fprintf(f, "#!%s again\n", name) > 0 && !fclose(f) && !chmod(script, 0755));
            execv(script, (char *[]){"script", NULL});
        }
        execv(name, (char *[]){name, "again", "x", NULL});
    }
    if (!strcmp(way, "thread")) {
        pthread_t t;
        pthread_create(&t, 0, in_thread, argv + 2);
        pthread_join(t, 0);
    }
    if (!strcmp(way, "vfork")) {
        pid_t pid = vfork();
        if (!pid) {
            execv(argv[2], argv + 2);
            _exit(127);
        }
        printf("%d\n", status_of(pid));
        return 0;
    }
    if (!strcmp(way, "vfork-closed")) {
        pid_t pid = vfork();
        if (!pid) {
            for (int i = 3; i < 256; i++) close(i);
            execv(argv[2], argv + 2);
            _exit(127);
        }
        printf("%d\n", status_of(pid));
        return 0;
    }
    if (!strcmp(way, "spawn-closed")) {
        posix_spawn_file_actions_t a;
        pid_t pid;
        posix_spawn_file_actions_init(&a);
        posix_spawn_file_actions_addclosefrom_np(&a, 3);
        int error = posix_spawn(&pid, argv[2], &a, 0, argv + 2, environ);
        if (error) {
            puts(strerror(error));
            return 1;
        }
        printf("%d\n", status_of(pid));
        return 0;
    }
    if (!strcmp(way, "spawnp")) {
        pid_t pid;
        int error = posix_spawnp(&pid, argv[2], 0, 0, argv + 2, environ);
        if (error) {
            puts(strerror(error));
            return 1;
        }
        printf("%d\n", status_of(pid));
        return 0;
    }
    if (!strcmp(way, "system")) {
        int status = system(argv[2]);
        fflush(stdout);
        printf("%x\n", status);
        return 0;
    }
    if (!strcmp(way, "popen")) {
        FILE *f = popen(argv[2], "r");
        char line[1000];
        while (fgets(line, sizeof line, f)) fputs(line, stdout);
        printf("%x\n", pclose(f));
        return 0;
    }
    if (!strcmp(way, "bad-pointers")) {
        CHECK(execv((char *)8, argv) == -1 && errno == EFAULT);
        CHECK(execve(argv[2], argv + 2, (char **)8) == -1 && errno == EFAULT);
        CHECK(execve(argv[2], (char **)8, environ) == -1 && errno == EFAULT);
        CHECK(execve(NULL, argv + 2, environ) == -1 && errno == EFAULT);
        CHECK(fexecve(-1, argv + 2, environ) == -1 && errno == EINVAL);
        CHECK(fexecve(0, argv + 2, NULL) == -1 && errno == EINVAL);
        CHECK(fexecve(200, argv + 2, environ) == -1 && errno == EBADF);
        CHECK(execve("", argv + 2, environ) == -1 && errno == ENOENT);
        errno = 0;
    }
    if (!strcmp(way, "limit")) {
        struct rlimit r = {3, 3};
        setrlimit(RLIMIT_NOFILE, &r);
        execv(argv[2], argv + 2);
    }
    printf("%s\n", strerror(errno));
    times(work, 4);
    return 5;
}
