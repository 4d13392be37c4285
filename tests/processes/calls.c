// Functions that begin with calls, and a signal handler that runs between any two of their instructions. Reads commands
// from standard input: "load T S" makes T threads call the functions for S seconds; "at N" calls one, stops in the
// handler after N instructions, prints the place, and continues after the next line.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#define OPAQUE __attribute__((noinline, noclone))
#define FUNCTION(name, body) \
    __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n.cfi_startproc\n" body \
            "\n.cfi_endproc\n.size " #name ", . - " #name "\n.p2align 4, 0xcc\n")
#define PUSH "push %rbx\n .cfi_adjust_cfa_offset 8\n "
#define POP "\n pop %rbx\n .cfi_adjust_cfa_offset -8\n ret"
FUNCTION(leaf, "lea 1(%rdi), %eax\n ret");
FUNCTION(direct, PUSH "call leaf" POP);
FUNCTION(by_word, PUSH "call *word(%rip)" POP "\n .pushsection .data.rel.local, \"aw\"\n word: .quad direct\n .popsection");
FUNCTION(first, "call by_word\n inc %eax\n ret");
// Traps after each of the instructions of `direct`.
FUNCTION(stepped, "pushfq\n .cfi_adjust_cfa_offset 8\n orl $0x100, (%rsp)\n popfq\n .cfi_adjust_cfa_offset -8\n call direct\n"
    " pushfq\n .cfi_adjust_cfa_offset 8\n andl $~0x100, (%rsp)\n popfq\n .cfi_adjust_cfa_offset -8\n ret");
int leaf(int), direct(int), first(int), stepped(int);
static double seconds;
static int steps;
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
static void check(int is, int what) {
    if (is != what) abort();
}
static void tick(int signal) { check(first(7), 9); }
static void say(const char *what, size_t len) {
    if (write(1, what, len) != (ssize_t)len) abort();
}
static char *hear(char line[100]) {
    int n = 0;
    while (n < 99 && read(0, line + n, 1) == 1)
        if (line[n++] == '\n') break;
    line[n] = 0;
    return n ? line : 0;
}
static void trapped(int signal, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    if (--steps) return;
    registers[REG_EFL] &= ~0x100;
    unsigned char *at = (void *)registers[REG_RIP];
    char line[100];
    int len = sprintf(line, "outside\n");
    if (at > (unsigned char *)direct && at < (unsigned char *)direct + 8)
        len = sprintf(line, "inside %d\n", (int)(at - (unsigned char *)direct));
    // A jump to a thunk, between functions: within reach of a short jump.
    else if (*at == 0xe9 && at != (unsigned char *)leaf && labs(at - (unsigned char *)direct) < 130)
        len = sprintf(line, "cave\n");
    say(line, len);
    hear(line);
}
static void *work(void *argument) {
    double end = now() + seconds;
    while (now() < end)
        for (int i = 0; i < 1000; i++) check(first(i), i + 2);
    return argument;
}
int main(void) {
    char line[100];
    int threads;
    signal(SIGALRM, tick);
    struct sigaction trap = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &trap, 0);
    say("ready\n", 6);
    while (hear(line)) {
        if (sscanf(line, "at %d", &steps) == 1) {
            check(direct(3), 4);
            check(stepped(5), 6);
        } else if (sscanf(line, "load %d %lf", &threads, &seconds) == 2) {
            struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
            pthread_t thread[64];
            setitimer(ITIMER_REAL, &often, 0);
            for (int i = 0; i < threads && i < 64; i++) pthread_create(&thread[i], 0, work, 0);
            for (int i = 0; i < threads && i < 64; i++) pthread_join(thread[i], 0);
            setitimer(ITIMER_REAL, &never, 0);
        }
        say("done\n", 5);
    }
    return 3;
}
