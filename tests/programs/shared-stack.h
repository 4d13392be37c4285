// Coroutines that share one stack and are switched by hand-written code that pushes and pops registers: see shared-stack.c and
// processes/shared-stack.c.
#include <stdlib.h>
#include <string.h>

// What is done while frames of two coroutines are copied away.
#ifndef AFTER_ROUND
#define AFTER_ROUND(round)
#endif

enum { SIZE = 1 << 16, COROUTINES = 3, ROUNDS = 10 };
void switch_to(void **from, void *to);
ASM_FUNCTION(switch_to,
    " push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n mov %rsp, (%rdi)\n mov %rsi, %rsp\n"
    " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
static struct coroutine {
    void *sp;
    char *copy;
    long size, sum, number;
} coroutines[COROUTINES], *current, *on_stack;
static char *stack;
static void *scheduler;

OPAQUE void yield(void) {
    switch_to(&current->sp, scheduler);
    BARRIER();
}
OPAQUE long first(long depth);
OPAQUE long second(long depth);
static long (*volatile functions[])(long) = {first, second};
OPAQUE long first(long depth) {
    volatile char room[64];
    room[depth] = current->number;
    long found = 0;
    if (depth) found = functions[0](depth - 1);
    else yield();
    CHECK(room[depth] == current->number);
    return found + 1;
}
// Its frames differ from those of `first` in their callers only.
OPAQUE long second(long depth) {
    volatile char room[64];
    room[depth] = current->number;
    long found = 0;
    if (depth) found = functions[1](depth - 1);
    else yield();
    CHECK(room[depth] == current->number);
    return found + 100;
}
OPAQUE void body(void) {
    for (int i = 0; i < ROUNDS; i++) {
        // The calls have different return addresses.
        if (current->number == 1) current->sum += functions[1](1);
        else if (i % 2) current->sum += functions[0](1);
        else current->sum += functions[0](1);
    }
    switch_to(&current->sp, scheduler);
    abort();
}
OPAQUE void start(struct coroutine *coroutine) {
    void **at = (void **)(stack + SIZE - 16);
    *--at = 0;
    *--at = body;
    for (int i = 0; i < 6; i++) *--at = 0;
    coroutine->sp = at;
    BARRIER();
}
OPAQUE void run(struct coroutine *next) {
    if (on_stack != next) {
        if (on_stack) {
            on_stack->size = stack + SIZE - (char *)on_stack->sp;
            on_stack->copy = realloc(on_stack->copy, on_stack->size);
            memcpy(on_stack->copy, on_stack->sp, on_stack->size);
        }
        if (next->sp) memcpy(next->sp, next->copy, next->size);
        else start(next);
        on_stack = next;
    }
    current = next;
    switch_to(&scheduler, next->sp);
    BARRIER();
}
OPAQUE void run_all(void) {
    if (!stack) stack = aligned_alloc(4096, SIZE);
    on_stack = 0;
    for (int i = 0; i < COROUTINES; i++) {
        coroutines[i].sp = 0;
        coroutines[i].sum = 0;
        coroutines[i].number = i;
    }
    run(&coroutines[0]);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 1; i < COROUTINES; i++) run(&coroutines[i]);
        AFTER_ROUND(round);
    }
    for (int i = 0; i < COROUTINES; i++) run(&coroutines[i]);
    for (int round = 1; round < ROUNDS; round++) run(&coroutines[0]);
    CHECK(coroutines[0].sum == 2 * ROUNDS && coroutines[2].sum == 2 * ROUNDS);
    CHECK(coroutines[1].sum == 200 * ROUNDS);
}
