// Variable arguments: al says how many vector registers are in use, and the prologue stores them.
//# arc: main -> sum 100
//# arc: main -> fsum 100
//# arc: main -> mixed 100
#include "test.h"
#include <stdarg.h>
OPAQUE int sum(int n, ...) {
    va_list list; va_start(list, n); int total = 0;
    while (n--) total += va_arg(list, int);
    va_end(list); return total;
}
OPAQUE double fsum(int n, ...) {
    va_list list; va_start(list, n); double total = 0;
    while (n--) total += va_arg(list, double);
    va_end(list); return total;
}
OPAQUE long double mixed(const char *kinds, ...) {
    va_list list; va_start(list, kinds); long double total = 0;
    for (; *kinds; kinds++)
        total += *kinds == 'i' ? va_arg(list, int) : *kinds == 'd' ? va_arg(list, double) : va_arg(list, long double);
    va_end(list); return total;
}
int main(void) {
    for (int i = 0; i < 100; i++) {
        CHECK(sum(10, 1, 2, 3, 4, 5, 6, 7, 8, 9, i) == 45 + i);
        CHECK(fsum(10, 1., 2., 3., 4., 5., 6., 7., 8., 9., (double)i) == 45. + i);
        CHECK(mixed("idLidL", 1, 2., 3.L, 4, 5., (long double)i) == 15.L + i);
    }
    return 0;
}
