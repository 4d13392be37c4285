// Makes threads all the time, each on a stack that was mapped just before, in which a signal handler sleeps that has interrupted
// a function behind its first byte. A hook must not be written there before the handler has returned.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include "obey.h"
#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %m\n", __LINE__, #what); abort(); } } while (0)
enum { PAGE = 4096, STACK = 64 << 10, LOAD_LEN = 2 };

static volatile int stop, sink;
static int running;

__attribute__((noinline, noclone)) void step(void) { sink++; }

// Loads from a bad address at its second byte.
int loads(const int *from);
__asm__(".text\n.globl loads\n.type loads, @function\nloads:\n"
        ".cfi_startproc\npush %rbp\n.cfi_def_cfa_offset 16\nmov (%rdi), %eax\nmov %rsp, %rbp\n"
        "pop %rbp\n.cfi_def_cfa_offset 8\nret\n.cfi_endproc\n.size loads, . - loads\n");

static void on_fault(int signal, siginfo_t *info, void *context) {
    ucontext_t *interrupted = context;
    usleep(10000);
    interrupted->uc_mcontext.gregs[REG_RAX] = 7;
    interrupted->uc_mcontext.gregs[REG_RIP] += LOAD_LEN;
}

static void *faults(void *argument) {
    for (int n = 0; n < 3; n++) CHECK(loads(argument) == 7);
    __atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static void *makes(void *argument) {
    pthread_attr_t attributes;
    CHECK(!pthread_attr_init(&attributes) && !pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED));
    while (!stop) {
        if (__atomic_load_n(&running, __ATOMIC_SEQ_CST) < 40) {
            // No stack is used twice. The page below it keeps it apart from the next one.
            char *page = mmap(0, PAGE + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(page != MAP_FAILED && !mprotect(page, PAGE, PROT_NONE));
            CHECK(!pthread_attr_setstack(&attributes, page + PAGE, STACK));
            __atomic_add_fetch(&running, 1, __ATOMIC_SEQ_CST);
            pthread_t thread;
            CHECK(!pthread_create(&thread, &attributes, faults, 0));
        }
        usleep(500);
    }
    return 0;
}

int main(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGSEGV, &action, 0));
    pthread_t maker;
    CHECK(!pthread_create(&maker, 0, makes, 0));
    OBEY();
    stop = 1;
    pthread_join(maker, 0);
    while (__atomic_load_n(&running, __ATOMIC_SEQ_CST)) usleep(1000);
    puts("the end");
    return 0;
}
