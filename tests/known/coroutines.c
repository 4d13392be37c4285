// Coroutines: the time in another one is not a function's own, nor a part of its inclusive time. ARGUMENT: how they switch and
// where their stacks are.
#include "known.h"
#include <ucontext.h>

#define SIZE (64 << 10)
#define ROUNDS 30

// The switch in assembly: saves what the calling convention preserves, and exchanges the stacks.
void switch_to(void **save, void *to);
__asm__(".text\n.globl switch_to\n.type switch_to,@function\nswitch_to:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n.size switch_to,.-switch_to\n");

static int by_assembly;
static void *stacks[3];
static ucontext_t contexts[3];
// The one that runs: 0 is the main one.
static int running;

// A call of this is the last that is seen of a coroutine before the other one runs.
static NOINLINE void go(int to) {
    int from = running;
    running = to;
    if (by_assembly) switch_to(&stacks[from], stacks[to]);
    else swapcontext(&contexts[from], &contexts[to]);
}

static NOINLINE void step(int n, int to) {
    spin(n * SHORT, n == 1 ? "first;step" : "second;step");
    // It stands here while others run.
    go(to);
    spin(n * SHORT, n == 1 ? "first;step" : "second;step");
}

static int symmetric;

static NOINLINE void first(void) {
    for (int i = 0; i < ROUNDS; i++) {
        spin(SHORT, "first");
        step(1, symmetric ? 2 : 0);
    }
    go(0);
    abort();
}

static NOINLINE void second(void) {
    for (int i = 0; i < ROUNDS; i++) {
        spin(SHORT, "second");
        step(2, symmetric ? 1 : 0);
    }
    go(0);
    abort();
}

static void make(int n, char *stack, void (*function)(void)) {
    if (by_assembly) {
        void **top = (void **)(stack + SIZE - 64);
        top[0] = (void *)function;
        // The outermost frame has no return address (System V ABI, 3.4.1).
        top[1] = 0;
        stacks[n] = top - 6;
    } else {
        getcontext(&contexts[n]);
        contexts[n].uc_stack.ss_sp = stack;
        contexts[n].uc_stack.ss_size = SIZE;
        contexts[n].uc_link = &contexts[0];
        makecontext(&contexts[n], function, 0);
    }
}

static NOINLINE void resume(int n) { go(n); }

static const char *own = "main;drive";

static NOINLINE void drive(char *one, char *two) {
    make(1, one, first);
    make(2, two, second);
    if (symmetric) {
        // It comes back when either of them has ended; the other one stands in its last step.
        resume(1);
    } else {
        for (int i = 0; i < ROUNDS; i++) {
            resume(1);
            resume(2);
            spin(3 * SHORT, own);
        }
        // Each stands in its last step, and returns from it.
        resume(1);
        resume(2);
    }
    spin(10 * SHORT, own);
}

static NOINLINE void in_local(void) {
    char local[2 * SIZE + 64];
    char *aligned = (char *)(((uintptr_t)local + 63) & ~63ul);
    own = "main;in_local;drive";
    drive(aligned, aligned + SIZE);
    __asm__ volatile("" : : "r"(local) : "memory");
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        by_assembly |= !strcmp(argv[i], "assembly");
        symmetric |= !strcmp(argv[i], "symmetric");
    }
    const char *where = argc > 1 ? argv[argc - 1] : "apart";
    if (!strcmp(where, "local")) {
        in_local();
    } else if (!strcmp(where, "adjacent")) {
        char *both = mmap(0, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        drive(both, both + SIZE);
    } else if (!strcmp(where, "heap")) {
        drive(aligned_alloc(64, SIZE), aligned_alloc(64, SIZE));
    } else {
        char *all = mmap(0, 64 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        drive(all + 40 * SIZE, all);
    }
    spin(1000 * SHORT, "main");
    counts("drive", 1, 1, 0);
    counts("step", 2 * ROUNDS, 2 * ROUNDS, symmetric);
    counts("first", 1, 1, 1);
    counts("second", 1, 1, 1);
    print_spent();
    return 0;
}
