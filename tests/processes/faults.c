// A program to attach to that uses faults: handlers for SIGSEGV, SIGTRAP, SIGFPE and SIGILL make it continue after the
// instruction. It reads commands as attached.cc does.
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include "obey.h"
#define OPAQUE __attribute__((noinline, noclone))
static volatile int stop, sink;
static __thread volatile int seen[65];
static __thread sigjmp_buf way_out;
OPAQUE void step(void) { sink++; }
OPAQUE int counted(int x) { return x + 1; }
static void on_fault(int signal, siginfo_t *info, void *context) {
    ucontext_t *machine = context;
    seen[signal]++;
    counted(signal);
    if (signal == SIGSEGV && info->si_addr == (void *)16) siglongjmp(way_out, 1);
    if (signal == SIGSEGV) machine->uc_mcontext.gregs[REG_RIP] += 2; // mov (%rax), %eax
    if (signal == SIGILL) machine->uc_mcontext.gregs[REG_RIP] += 2;  // ud2
    if (signal == SIGFPE) machine->uc_mcontext.gregs[REG_RIP] += 2;  // idiv %ecx
}
OPAQUE void faults(void) {
    memset((void *)seen, 0, sizeof seen);
    int a;
    __asm__ volatile("mov (%%rax), %%eax" : "=a"(a) : "a"(8L));
    __asm__ volatile("int3");
    __asm__ volatile("ud2");
    __asm__ volatile("idiv %%ecx" : "=a"(a) : "a"(1), "c"(0) : "rdx");
    if (!sigsetjmp(way_out, 1)) *(volatile int *)16 = counted(1);
    if (seen[SIGSEGV] != 2 || seen[SIGTRAP] != 1 || seen[SIGILL] != 1 || seen[SIGFPE] != 1) abort();
}
static void *work(void *argument) {
    long rounds = 0;
    do {
        faults();
        for (int i = 0; i < 200; i++) counted(i);
        rounds++;
    } while (!stop);
    return (void *)(long)(rounds > 0);
}
int main(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    int signals[] = {SIGSEGV, SIGTRAP, SIGFPE, SIGILL};
    for (int i = 0; i < 4; i++) sigaction(signals[i], &action, 0);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, work, 0);
    OBEY();
    stop = 1;
    for (int i = 0; i < 2; i++) {
        void *result;
        pthread_join(threads[i], &result);
        printf("thread %d: %ld\n", i, (long)result);
    }
    return 4;
}
