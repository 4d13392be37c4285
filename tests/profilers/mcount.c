// A program with a counter of its own, as another profiler would bring.
#include <stdio.h>
#define OPAQUE __attribute__((noinline, noclone))
long counted;
__asm__(".globl mcount\n.type mcount, @function\nmcount:\n incq counted(%rip)\n ret\n.size mcount, .-mcount\n"
        ".globl __fentry__\n.type __fentry__, @function\n__fentry__:\n incq counted(%rip)\n ret\n.size __fentry__, .-__fentry__\n");
OPAQUE int work(int x) { __asm__ volatile(""); return x + 1; }
int main(void) {
    int sum = 0;
    for (int i = 0; i < 10; i++) sum = work(sum);
    printf("%d %ld\n", sum, counted);
    return 0;
}
