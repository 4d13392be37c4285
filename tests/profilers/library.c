// A library built with -pg: counters are called before any code of the program runs, by its resolver, by its
// constructor and on threads.
#include <stdlib.h>
__attribute__((noinline)) static int add(int x) { __asm__ volatile(""); return x + 1; }
static int chosen_add(int x) { return add(x) + 1; }
static void *choose(void) { return add(0) ? (void *)chosen_add : (void *)add; }
int chosen(int) __attribute__((ifunc("choose")));
static int begun;
__attribute__((constructor)) static void begin(void) { begun = add(add(40)); }
int call_back(int (*f)(int), int times) {
    int sum = begun;
    for (int i = 0; i < times; i++) sum = f(chosen(sum));
    return sum;
}
