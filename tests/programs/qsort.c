// Called back by libc: charged to the function that called libc.
//# arc: main -> sort_two 100
//# arc: sort_two -> compare 100
//# arc: main -> search_one 50
//# arc: search_one -> compare 50
//# entry-arc: _start -> compare 150
#include "test.h"
#include <stdlib.h>
OPAQUE int compare(const void *a, const void *b) { BARRIER(); return *(int *)a - *(int *)b; }
OPAQUE void sort_two(void) { int v[2] = {2, 1}; qsort(v, 2, sizeof *v, compare); CHECK(v[0] == 1); }
// Through a pointer: the header's own bsearch would be inlined, and compare called by us.
void *(*volatile search)(const void *, const void *, size_t, size_t, int (*)(const void *, const void *)) = bsearch;
OPAQUE void search_one(void) { int v[1] = {5}, k = 5; CHECK(search(&k, v, 1, sizeof *v, compare) == v); BARRIER(); }
int main(void) {
    for (int i = 0; i < 100; i++) sort_two();
    for (int i = 0; i < 50; i++) search_one();
    return 0;
}
