// Several names for one address, and weak ones.
//# arc: main -> real 300
//# arc: main -> weakly 10
//# arc: main -> same_a 5
//# arc: main -> same_b 6
#include "test.h"
OPAQUE int real(int x) { BARRIER(); return x + 1; }
int second(int) __attribute__((alias("real")));
int third(int) __attribute__((weak, alias("real")));
__attribute__((weak)) OPAQUE int weakly(int x) { BARRIER(); return x; }
__attribute__((weak)) int absent(int);
// The same code: one function after identical code folding, and then its count is the sum.
OPAQUE int same_a(int x) { BARRIER(); return x * 3; }
OPAQUE int same_b(int x) { BARRIER(); return x * 3; }
int main(void) {
    for (int i = 0; i < 100; i++) CHECK(real(i) == i + 1 && second(i) == i + 1 && third(i) == i + 1);
    for (int i = 0; i < 10; i++) CHECK(weakly(i) == i);
    for (int i = 0; i < 5; i++) CHECK(same_a(i) == 3 * i);
    for (int i = 0; i < 6; i++) CHECK(same_b(i) == 3 * i);
    CHECK(!absent);
    return 0;
}
