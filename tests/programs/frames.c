// Frames of variable and of large size, and stacks that move by themselves.
//# arc: main -> variable 100
//# arc: variable -> fill 100
//# arc: main -> large 10
//# arc: large -> fill 10
#include "test.h"
#include <alloca.h>
#include <string.h>
OPAQUE void fill(char *p, long n) { memset(p, 1, n); BARRIER(); }
OPAQUE int variable(int n) { char *p = alloca(n + 1); fill(p, n + 1); BARRIER(); return p[n]; }
OPAQUE int large(void) { char p[1 << 20]; fill(p, sizeof p); BARRIER(); return p[5]; }
int main(void) {
    for (int i = 0; i < 100; i++) CHECK(variable(i * 100) == 1);
    for (int i = 0; i < 10; i++) CHECK(large() == 1);
    return 0;
}
