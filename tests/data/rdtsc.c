// fib.c with two rdtsc in each call and nothing else: what reading the clock costs by itself. Argument: n.
#include <stdio.h>
#include <stdlib.h>
#include <x86intrin.h>
static unsigned long sum;
__attribute__((noinline)) long fib(long n) {
    unsigned long start = __rdtsc();
    long result = n < 2 ? n : fib(n - 1) + fib(n - 2);
    sum += __rdtsc() - start;
    return result;
}
int main(int argc, char **argv) {
    printf("%ld\n", fib(argc > 1 ? atol(argv[1]) : 36));
    return sum == 0;
}
