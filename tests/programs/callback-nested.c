// Callbacks within callbacks: each is charged to the program's nearest function below libc's frames.
//# arc: main -> outer 10
//# arc: outer -> outer_compare 10
//# arc: outer_compare -> inner 10
//# arc: inner -> inner_compare 10
//# arc: inner_compare -> leaf 10
//# entry-arc: _start -> outer_compare 10
//# entry-arc: _start -> inner_compare 10
#include "test.h"
#include <stdlib.h>
OPAQUE void leaf(void) { BARRIER(); }
OPAQUE int inner_compare(const void *a, const void *b) { leaf(); BARRIER(); return *(int *)a - *(int *)b; }
OPAQUE int inner(void) { int v[2] = {2, 1}; qsort(v, 2, sizeof *v, inner_compare); return v[0]; }
OPAQUE int outer_compare(const void *a, const void *b) { CHECK(inner() == 1); BARRIER(); return *(int *)a - *(int *)b; }
OPAQUE int outer(void) { int v[2] = {4, 3}; qsort(v, 2, sizeof *v, outer_compare); return v[0]; }
int main(void) { for (int i = 0; i < 10; i++) CHECK(outer() == 3); return 0; }
