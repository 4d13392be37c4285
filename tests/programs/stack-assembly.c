// Coroutines with a switch in assembly, a few hundred of them, on stacks that lie side by side.
//# others: allowed
//# arc: main -> resume 20000
//# arc: run -> step 20000
//# arc: step -> leaf 20000
//# arc: step -> yield 20000
//# callgrind: no, it does not follow stacks that are switched
#include "test.h"
#include <stdlib.h>
#include <string.h>
#define N 200
#define SIZE 4096
// rdi: where the old stack pointer goes, rsi: the new one.
ASM_FUNCTION(exchange, "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n mov %rsp, (%rdi)\n"
    " mov %rsi, %rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret");
void exchange(void **save, void *next);
static void *caller, *each[N];
static long sum;
static int now;
OPAQUE long leaf(long x) { BARRIER(); return x + 1; }
OPAQUE void yield(void) { exchange(&each[now], caller); BARRIER(); }
OPAQUE void step(void) { sum = leaf(sum); yield(); BARRIER(); }
OPAQUE void run(void) { for (;;) step(); }
OPAQUE void resume(int i) { now = i; exchange(&caller, each[i]); BARRIER(); }
int main(void) {
    char *stacks = aligned_alloc(SIZE, N * SIZE);
    for (int i = 0; i < N; i++) {
        void **top = (void **)(stacks + (i + 1) * SIZE) - 2;
        memset(stacks + i * SIZE, 0, SIZE);
        *top = (void *)run;
        each[i] = top - 6;
    }
    for (int round = 0; round < 100; round++) for (int i = 0; i < N; i++) resume(i);
    CHECK(sum == 100 * N);
    return 0;
}
