// Prints a line when each of its functions begins and one when it returns: `tid > name`, `tid < name`.
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((no_instrument_function, noinline)) static void say(char what, const char *name) {
    char line[100];
    int len = snprintf(line, sizeof line, "%ld %c %s\n", syscall(SYS_gettid), what, name);
    if (write(1, line, len) != len) abort();
}
#define IN say('>', __func__)
#define OUT say('<', __func__)
static jmp_buf env;
__attribute__((noinline)) static int leaf(int x) { IN; x += 1; OUT; return x; }
__attribute__((noinline)) static int work(int n) { IN; int s = 0; for (int i = 0; i < n; i++) s += leaf(i); OUT; return s; }
__attribute__((noinline)) static void deep(int n) { IN; if (n == 0) longjmp(env, 1); deep(n - 1); OUT; }
static void handler(int signal) { IN; work(signal ? 1 : 2); OUT; }
static void *thread(void *arg) { IN; work((int)(long)arg); OUT; return NULL; }
__attribute__((noinline)) static int child(void) { IN; int s = work(3); OUT; return s; }
int main(void) {
    IN;
    pthread_t threads[3];
    for (long i = 0; i < 3; i++) pthread_create(&threads[i], NULL, thread, (void *)(i + 2));
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    if (setjmp(env) == 0) deep(4);
    signal(SIGUSR1, handler);
    raise(SIGUSR1);
    if (fork() == 0) { child(); _exit(0); }
    wait(NULL);
    work(2);
    OUT;
    return 0;
}
