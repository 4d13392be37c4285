// Direct calls, from loops and from several sites.
//# arc: main -> a 3
//# arc: a -> b 30
//# arc: a -> c 3
//# arc: main -> c 1
//# stdout: 34
#include "test.h"
int total;
OPAQUE void c(void) { total++; BARRIER(); }
OPAQUE void b(void) { total++; BARRIER(); }
OPAQUE void a(void) { for (int i = 0; i < 10; i++) b(); c(); BARRIER(); }
int main(void) { for (int i = 0; i < 3; i++) a(); c(); printf("%d\n", total); return 0; }
