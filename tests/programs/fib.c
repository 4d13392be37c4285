// Recursion.
//# arc: main -> fib 1
//# arc: fib -> fib 1972
//# stdout: 610
#include "test.h"
OPAQUE int fib(int n) {
    if (n < 2) return n;
    int a = fib(n - 1);
    int b = fib(n - 2);
    __asm__ volatile("" : "+r"(b));
    return a + b;
}
int main(void) { printf("%d\n", fib(15)); return 0; }
