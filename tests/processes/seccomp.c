// argv: prctl, syscall, strict, tsc or tsc-syscall (which forbids the counter alone), or asks (and does not enter); kill, errno or trap; what is done then. Only the system calls that the
// program itself needs are allowed. work() 3 times before; then new functions, threads, children.
#include "common.h"
#define ALLOW(n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, n, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
static void *thread(void *unused) { times(late, 9); return 0; }
int main(int argc, char **argv) {
    uint32_t action = !strcmp(argv[2], "kill") ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_write), ALLOW(SYS_exit_group), ALLOW(SYS_exit), ALLOW(SYS_read), ALLOW(SYS_fstat), ALLOW(SYS_newfstatat),
        ALLOW(SYS_brk), ALLOW(SYS_wait4), ALLOW(SYS_futex), ALLOW(SYS_set_robust_list), ALLOW(SYS_rseq),
        ALLOW(SYS_clone), ALLOW(SYS_clone3), ALLOW(SYS_fork), ALLOW(SYS_vfork), ALLOW(SYS_rt_sigprocmask), ALLOW(SYS_rt_sigaction), ALLOW(SYS_getrandom), ALLOW(SYS_execve),
        ALLOW(!strcmp(argv[3], "thread") ? SYS_mmap : SYS_write), ALLOW(!strcmp(argv[3], "thread") ? SYS_mprotect : SYS_write),
        ALLOW(!strcmp(argv[3], "thread") ? SYS_munmap : SYS_write), ALLOW(!strcmp(argv[3], "thread") ? SYS_madvise : SYS_write),
        BPF_STMT(BPF_RET | BPF_K, action),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    static char buffer[1000];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    times(work, 3);
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    if (!strcmp(argv[1], "prctl")) CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    if (!strcmp(argv[1], "syscall")) CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
    if (!strcmp(argv[1], "strict")) CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
    if (!strcmp(argv[1], "tsc")) CHECK(!prctl(PR_SET_TSC, PR_TSC_SIGSEGV));
    if (!strcmp(argv[1], "tsc-syscall")) CHECK(!syscall(SYS_prctl, PR_SET_TSC, PR_TSC_SIGSEGV));
    if (!strcmp(argv[1], "asks")) {
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0) == -1 && errno == EFAULT);
        CHECK(prctl(PR_SET_SECCOMP, 77, 0) == -1 && errno == EINVAL);
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 8) == -1 && errno == EFAULT);
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0xffff, &program) == -1 && errno == EINVAL);
        CHECK(syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 8) == -1 && errno == EFAULT);
    }
    times(other, 7);
    times(work, 2);
    if (!strcmp(argv[3], "strict")) {
        syscall(SYS_write, 1, "done\n", 5);
        syscall(SYS_exit, 6);
    }
    if (!strcmp(argv[3], "thread")) {
        pthread_t t;
        CHECK(!pthread_create(&t, 0, thread, 0));
        CHECK(!pthread_join(t, 0));
    }
    if (!strcmp(argv[3], "fork")) {
        pid_t pid = fork();
        if (!pid) {
            times(late, 9);
            times(work, 9);
            _exit(2);
        }
        printf("%d\n", status_of(pid));
    }
    if (!strcmp(argv[3], "vfork")) {
        pid_t pid = vfork();
        if (!pid) _exit(2);
        printf("%d\n", status_of(pid));
    }
    if (!strcmp(argv[3], "exec")) {
        execl("/nonexistent", "x", (char *)0);
        printf("%d\n", errno);
    }
    puts("done");
    return 6;
}
