// Clones under other names: the compiler drops arguments, or makes a copy for a constant.
//# arc: main -> unused_argument 100
//# arc: main -> reference 100
//# arc: unused_argument -> leaf 100
//# not: clang-O2
#include "test.h"
OPAQUE void leaf(void) { BARRIER(); }
__attribute__((noinline)) static int unused_argument(int a, int b, int c) {
    leaf(); __asm__ volatile("" : "+r"(a)); return a + 1;
}
__attribute__((noinline)) static int reference(const int *p, int always) {
    int a = *p; __asm__ volatile("" : "+r"(a)); return always ? a + 1 : a;
}
int main(void) {
    for (int i = 0; i < 100; i++) { CHECK(unused_argument(i, 5, i) == i + 1); CHECK(reference(&i, 1) == i + 1); }
    return 0;
}
