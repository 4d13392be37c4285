/* Functions that are inlined: how often their lines are executed is known only by the debug information of the inlined calls. */
#include <stdio.h>

#define INLINED static inline __attribute__((always_inline))
INLINED int inner(int k) { int sum = 0; for (int i = 0; i < k; i++) sum += i ^ k; return sum; }
INLINED int outer(int k) { return inner(k) + inner(k + 1); }
__attribute__((noinline)) int work(int n) { return outer(n) * 2; }

int main(void) {
    int sum = 0;
    for (int i = 0; i < 1000; i++) sum += work(i);
    printf("%d\n", sum);
    return 0;
}
