// Functions that a library calls. The time in the library between them is its caller's, unless the library is hooked.
#include "known.h"

static NOINLINE int compare(const void *a, const void *b) {
    spin(SHORT, "main;sort;compare");
    return *(const int *)a - *(const int *)b;
}

static int compares;

static NOINLINE int search(const void *a, const void *b) {
    compares++;
    spin(SHORT, "main;find;search");
    return *(const int *)a - *(const int *)b;
}

static NOINLINE void sort(void) {
    int list[64];
    for (int i = 0; i < 64; i++) list[i] = i * 37 % 64;
    qsort(list, 64, sizeof *list, compare);
    spin(10 * SHORT, "main;sort");
}

static NOINLINE void find(void) {
    int list[64];
    for (int i = 0; i < 64; i++) list[i] = i;
    for (int i = 0; i < 64; i++) {
        if (!bsearch(&i, list, 64, sizeof *list, search)) abort();
    }
    spin(10 * SHORT, "main;find");
}

int main(void) {
    for (int i = 0; i < 3; i++) sort(), find();
    counts("sort", 3, 3, 0);
    counts("find", 3, 3, 0);
    counts("search", compares, compares, 0);
    print_spent();
    return 0;
}
