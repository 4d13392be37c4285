// longjmp from several frames: later calls have the right callers again.
//# arc: main -> attempt 100
//# arc: attempt -> down 100
//# arc: down -> down 400
//# arc: down -> throw_it 100
//# arc: attempt -> leaf 100
//# arc: main -> sort 100
//# arc: sort -> compare 100
//# arc: main -> leaf 100
//# entry-arc: _start -> compare 100
#include "test.h"
#include <setjmp.h>
#include <stdlib.h>
static jmp_buf there;
OPAQUE void leaf(void) { BARRIER(); }
OPAQUE void throw_it(void) { longjmp(there, 1); }
OPAQUE void down(int n) { if (n) down(n - 1); else throw_it(); BARRIER(); }
OPAQUE void attempt(void) { if (setjmp(there) == 0) down(4); else leaf(); BARRIER(); }
OPAQUE int compare(const void *a, const void *b) { longjmp(there, 2); }
OPAQUE void sort(void) { int v[2] = {2, 1}; if (!setjmp(there)) qsort(v, 2, sizeof *v, compare); BARRIER(); }
int main(void) {
    for (int i = 0; i < 100; i++) { attempt(); sort(); leaf(); }
    return 0;
}
