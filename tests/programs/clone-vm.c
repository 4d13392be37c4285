// Threads that share the thread area of the one that makes them (clone with CLONE_VM, without CLONE_SETTLS): as a process of its own and
// as a thread, by the C library's function and by a number. All count at once, and so does their parent when they have ended.
//# flags: -D_GNU_SOURCE
//# stdout: 8000 8000 8000 8000
//# arc: _start -> by_function 2
//# arc: _start -> by_number 1
//# arc: by_function -> work 2000
//# arc: by_number -> work 1000
//# arc: main -> work 2000
//# arc: main -> stack_end 3
//# arc: work -> sum 5000
//# arc: work -> pass 5000
//# arc: sum -> sum 35000
//# arc: pass -> last 5000
//# entry-arc: work -> last 5000
//# callgrind: no, valgrind does not follow such threads
#include "test.h"
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
// The stacks do not adjoin (docs/internals/hot-path.md, "Threads that share their words").
#define SIZE (64 << 20)
enum { PROCESS, THREAD, NUMBER, PARENT };
static volatile long sums[4];
static volatile int alive, go;
OPAQUE long sum(long n) {
    if (n == 0) return 1;
    long rest = sum(n - 1);
    __asm__ volatile("" : "+r"(rest)); // so that it does not become a loop
    return rest + 1;
}
OPAQUE long last(long n) { BARRIER(); return n; }
ASM_FUNCTION(pass, "jmp last"); // a tail call
long pass(long);
OPAQUE void work(int which) {
    long n = sum(7);
    BARRIER();
    sums[which] += pass(n);
    BARRIER();
}
// Nobody begins before all are there.
static inline __attribute__((always_inline)) void wait_for_all(void) { while (!go) __asm__ volatile("pause" ::: "memory"); }
OPAQUE int by_function(void *which) {
    wait_for_all();
    for (int i = 0; i < 1000; i++) work((int)(intptr_t)which);
    return 0;
}
OPAQUE void by_number(void) {
    wait_for_all();
    for (int i = 0; i < 1000; i++) work(NUMBER);
    syscall(SYS_exit, 0);
}
OPAQUE char *stack_end(void) {
    char *stack = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED);
    return stack + SIZE;
}
int main(void) {
    int process = clone(by_function, stack_end(), CLONE_VM | SIGCHLD, (void *)PROCESS);
    CHECK(process > 0);
    alive = 1;
    int thread = clone(by_function, stack_end(),
                       CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_CHILD_CLEARTID,
                       (void *)THREAD, 0, 0, &alive);
    CHECK(thread > 0);
    // syscall() returns to the address at the end of the new stack. There is room above for arguments of syscall() in memory, which it reads always.
    uintptr_t *end = (uintptr_t *)stack_end() - 8;
    end[0] = (uintptr_t)by_number;
    end[1] = 1; // its return address
    int number = syscall(SYS_clone, CLONE_VM | SIGCHLD, end, 0, 0, 0);
    CHECK(number > 0);
    go = 1;
    for (int i = 0; i < 1000; i++) work(PARENT);
    while (alive) syscall(SYS_futex, &alive, FUTEX_WAIT, 1, 0, 0, 0);
    int status = 0;
    CHECK(waitpid(process, &status, 0) == process && status == 0);
    CHECK(waitpid(number, &status, 0) == number && status == 0);
    long before = sums[PARENT];
    for (int i = 0; i < 1000; i++) work(PARENT);
    printf("%ld %ld %ld %ld\n", sums[PROCESS], sums[THREAD], sums[NUMBER], before);
    return 0;
}
