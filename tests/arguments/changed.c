/* Functions that compilers make with fewer or other parameters than the source has. Each prints those that it uses. */
#include <stdbool.h>
#include <stdio.h>

#define KEEP __attribute__((noinline))
struct point { long x; int y; double z; };
volatile long sink;

static KEEP int removed(int used, int unused, long also, double unused_too, double last) {
    printf("removed used=%d also=%ld last=%a\n", used, also, last);
    return used + also;
}
static KEEP int constant(int a, int always, double d, const char *text) {
    printf("constant a=%d d=%a text=%#lx\n", a, d, (unsigned long)text);
    return a * always;
}
static KEEP void pointed(const struct point *p, int n) {
    printf("pointed n=%d\n", n);
    sink = p->x + n;
}
static KEEP long without_result(short a, unsigned char b) {
    printf("without_result a=%d b=%d\n", a, b);
    return sink;
}
static KEEP int unchanged(int a, float b, char c) {
    printf("unchanged a=%d b=%a c=%d\n", a, b, c);
    return a + c;
}
static KEEP int flagged(int n, long unused, bool is_set, unsigned char c) {
    printf("flagged n=%d is_set=%d c=%d\n", n, is_set, c);
    return n + is_set;
}
KEEP int exported(int unused, int a, double b) {
    printf("exported a=%d b=%a\n", a, b);
    return a;
}
/* Its convention is fixed, but clang does not pass it what it ignores: a parameter, and half of one. */
struct two { long a, b; };
KEEP long ignoring(int first, long unused, struct two half, double last, int on_stack, struct two *p) {
    printf("ignoring first=%d last=%a on_stack=%d p=%#lx\n", first, last, on_stack, (unsigned long)p);
    return half.b;
}
/* Debug information says of n that it is 5, which no caller has passed. */
static KEEP long reassigned(long n, long m) {
    printf("reassigned m=%ld\n", m);
    n = 5;
    for (long i = 0; i < m; i++) {
        sink = n;
        n = 5;
    }
    return m;
}
int main(int argc, char **argv) {
    struct point p = {argc, 2, 3};
    sink = removed(argc, 5, argc + 6, 1.5, argc + 0.25) + removed(argc + 7, 5, 8, 2.5, -1);
    sink = constant(argc + 1, 3, argc * 1.5, argv[0]) + constant(-argc, 3, 0.125, "text");
    pointed(&p, argc + 9);
    without_result(argc - 10, argc + 200);
    without_result(-argc, 3);
    sink = unchanged(argc, argc + 0.5f, 'c');
    sink = flagged(argc, 3, argc == 1, argc + 200) + flagged(argc + 4, 5, argc == 2, 7);
    sink = exported(1, argc + 2, argc + 0.75);
    for (int i = 0; i < 3; i++) {
        struct two half = {argc * 1000 + i, i * 7};
        sink = ignoring(argc + i, argc * 77 + i, half, argc + 0.5, i + 40, &half);
        sink = reassigned(argc + 70 + i, argc + i);
    }
    return 0;
}
