// An indirect function: the dynamic linker calls the resolver before any other code of the program runs.
//# not: musl
//# arc: _start -> choose 1
//# arc: main -> chosen 100
//# arc: main -> plain 10
#include "test.h"
OPAQUE int chosen(int x) { BARRIER(); return x + 1; }
OPAQUE int other(int x) { BARRIER(); return x + 2; }
OPAQUE int plain(int x) { BARRIER(); return x; }
static void *choose(void) { return (void *)chosen; }
int indirect(int) __attribute__((ifunc("choose")));
int main(void) {
    for (int i = 0; i < 100; i++) CHECK(indirect(i) == i + 1);
    for (int i = 0; i < 10; i++) CHECK(plain(i) == i);
    return 0;
}
