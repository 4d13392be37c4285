// Coroutines that share one stack, for stack-copies.c and processes/stack-copies.c.
#include <stdlib.h>
enum { COROUTINES = 3, YIELDS = 40 };
struct coroutine {
    char *low, *copy;
    int is_dead;
    volatile long sum;
};
static struct coroutine first, others[COROUTINES], *current = &first, *next;
static char *base;
OPAQUE void save(char *low) {
    current->low = low;
    current->copy = malloc(base - low);
    for (long i = 0; i < base - low; i++) current->copy[i] = low[i];
    BARRIER();
}
OPAQUE void restore(void) {
    current = next;
    char *low = current->low;
    for (long i = 0; i < base - low; i++) ((volatile char *)low)[i] = current->copy[i];
    free(current->copy);
    current->copy = 0;
    BARRIER();
}
// Returns 1 in a coroutine that begins.
OPAQUE int switch_to(struct coroutine *to) {
    void *frame;
    char *low;
    long distance;
    __asm__ volatile("" ::: "rbx", "r12", "r13", "r14", "r15", "memory");
    __asm__ volatile("mov %%rbp, %0" : "=m"(frame));
    __asm__ volatile("mov %%rsp, %0" : "=r"(low));
    next = to;
    if (!current->is_dead) save(low);
    if (!to->copy) return 1;
    distance = to->low - low;
    __asm__ volatile("add %0, %%rsp\n\tadd %0, %%rbp" : : "r"(distance) : "memory");
    restore();
    __asm__ volatile("mov %0, %%rbp" : : "m"(frame));
    __asm__ volatile("" ::: "rbx", "r12", "r13", "r14", "r15", "memory");
    return 0;
}
OPAQUE void yield(void) {
    switch_to(&first);
    BARRIER();
}
OPAQUE void work(int depth);
// Calls through pointers, so that frames need cells.
static void (*volatile works)(int) = work, (*volatile yields)(void) = yield;
// What does the work of a coroutine.
static void (*volatile worker)(int) = work;
OPAQUE void work(int depth) {
    volatile char room[100];
    room[depth] = depth;
    if (depth) works(depth - 1);
    else yields();
    current->sum += room[depth];
    BARRIER();
}
OPAQUE void body(int from) {
    for (int i = 0; i < YIELDS; i++) worker((from + i) % 5);
    BARRIER();
}
OPAQUE void resume(struct coroutine *to) {
    if (switch_to(to)) {
        current = to;
        body(2 * (to - others));
        to->is_dead = 1;
        switch_to(&first);
    }
    BARRIER();
}
// Runs all coroutines to their ends. No frame above `top` is copied.
OPAQUE void run_all(char *top) {
    base = top;
    for (int n = 0; n <= YIELDS; n++) for (int i = 0; i < COROUTINES; i++) resume(&others[i]);
    for (int i = 0; i < COROUTINES; i++) {
        CHECK(others[i].is_dead && others[i].sum == YIELDS / 5 * 20);
        others[i] = (struct coroutine){0};
    }
    BARRIER();
}
