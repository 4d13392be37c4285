// Mutual recursion.
//# arc: main -> even 1
//# arc: even -> odd 50
//# arc: odd -> even 50
#include "test.h"
int odd(int);
OPAQUE int even(int n) { int r = n == 0 ? 1 : odd(n - 1); BARRIER(); return r; }
OPAQUE int odd(int n) { int r = n == 0 ? 0 : even(n - 1); BARRIER(); return r; }
int main(void) { CHECK(even(100)); return 0; }
