// argv: what the program does by a system call instruction of its own: fork, clone (with a new stack), exec, execat, seccomp or tsc. work() 3
// times before; then other() and late(), in the child if there is one.
#include "common.h"
static inline __attribute__((always_inline)) long make(long number, long a, long b, long c, long d, long e) {
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    return result;
}
// Its number is not known where it makes the call.
__attribute__((noinline, noipa)) long any(long number, long a, long b, long c, long d, long e) { return make(number, a, b, c, d, e); }
static int child(void) { times(late, 9); times(work, 9); return 2; }
// clone whose child has a stack of its own, in a copy of the memory: the function's address is on it.
__attribute__((noinline)) static long clone_to(char *end) {
    long result;
    *(long *)(end -= 16) = (long)child;
    __asm__ volatile("syscall\n test %%rax, %%rax\n jnz 1f\n pop %%rax\n call *%%rax\n mov %%eax, %%edi\n mov $231, %%eax\n syscall\n 1:"
                     : "=a"(result) : "a"(SYS_clone), "D"(SIGCHLD), "S"(end), "d"(0) : "rcx", "r11", "memory", "r10", "r8", "r9");
    return result;
}
int main(int argc, char **argv) {
    static char stack[1 << 16] __attribute__((aligned(16)));
    char *args[] = {argv[0], "ends", 0};
    setvbuf(stdout, 0, _IONBF, 0);
    times(work, 3);
    if (!strcmp(argv[1], "ends")) { times(late, 11); return 4; }
    times(other, 7);
    if (!strcmp(argv[1], "fork")) {
        long pid = make(SYS_fork, 0, 0, 0, 0, 0);
        if (!pid) _exit(child());
        printf("%d\n", status_of(pid));
    }
    if (!strcmp(argv[1], "any-fork")) {
        long pid = any(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (!pid) _exit(child());
        printf("%d\n", status_of(pid));
    }
    if (!strcmp(argv[1], "vfork")) {
        long pid = any(SYS_clone, CLONE_VM | CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);
        if (!pid) make(SYS_exit_group, 2, 0, 0, 0, 0);
        printf("%d\n", status_of(pid));
    }
    if (!strcmp(argv[1], "clone")) printf("%d\n", status_of(clone_to(stack + sizeof stack)));
    if (!strcmp(argv[1], "exec")) {
        CHECK(make(SYS_execve, (long)"/nonexistent", (long)args, (long)environ, 0, 0) == -ENOENT);
        make(SYS_execve, (long)argv[0], (long)args, (long)environ, 0, 0);
    }
    if (!strcmp(argv[1], "execat")) make(SYS_execveat, AT_FDCWD, (long)argv[0], (long)args, (long)environ, 0);
    if (!strcmp(argv[1], "seccomp")) {
        struct sock_filter filter[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 1, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        };
        struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
        CHECK(!make(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        CHECK(make(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, 8, 0, 0) == -EFAULT);
        CHECK(!make(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&program, 0, 0));
        times(late, 5);
    }
    if (!strcmp(argv[1], "tsc")) {
        CHECK(!make(SYS_prctl, PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0));
        times(late, 5);
    }
    puts("done");
    return 6;
}
