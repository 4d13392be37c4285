// gcc's nested functions get r10 from their callers; with -fipa-ra it is set once for several calls, or only passed
// on. The same in assembly, in a cold part.
//# only: gcc
//# others: allowed
//# arc: main -> run 1000
//# arc: main -> chains 1000
//# arc: chains -> chained 1000
//# entry-arc: main -> chained 1000
#include "test.h"
static long total;
SEEN static long leaf(long x) {
    total += x;
    return x * 3;
}
SEEN long run(long n) {
    long a = n, b = 3;
    SEEN long one(void) { return leaf(b) + a; }
    SEEN long two(void) { return b * 5 + a; }
    SEEN long inner(long x) {
        total += x;
        return x * 3 + a;
    }
    SEEN long middle(long x) { return inner(x + 1) * 2 + inner(x); }
    SEEN long outer(long x) { return middle(x - 1) + 7; }
    long r = one();
    r += two();
    r += one();
    return r + outer(n) + a * b;
}

__attribute__((used)) int counter;
// What leads to the first instruction of the cold part is in the cold part only.
ASM_FUNCTION(chained.cold, "1: incl counter(%rip)\n jmp chained_back\n chained_cold: mov (%r10), %rax\n test %eax, %eax\n"
    "jne 1b\n jmp chained_back");
ASM_FUNCTION(chained, "test %edi, %edi\n jne chained_cold\n mov $1, %eax\n chained_back: ret");
ASM_FUNCTION(chains, "lea value(%rip), %r10\n jmp chained");
__attribute__((used)) long value = 77;
long chains(long);

int main(void) {
    for (long i = 0; i < 1000; i++) {
        CHECK(run(i) == 37 + 18 * i);
        CHECK(chains(i % 2) == (i % 2 ? 77 : 1));
    }
    CHECK(counter == 500);
    return 0;
}
