/* Functions whose arguments gdb prints. */
#include <stdarg.h>
#include <stddef.h>

#define KEEP __attribute__((noinline, noclone)) 
enum colour { RED, GREEN = 7, BLUE = -3 };
struct point { int x, y; };
struct mixed { double d; long n; };
struct large { long a, b, c; };
union either { float f; int i; };
typedef unsigned char byte;
typedef const char *text;
volatile long sink;

KEEP int integers(signed char a, unsigned char b, short c, unsigned short d, int e, unsigned f, long g, unsigned long h, byte i) {
    sink = a + b + c + d + e + f + g + h + i;
    return sink;
}
KEEP double floats(float a, double b, float c, double d, float e, double f, float g, double h, float i, double j) {
    sink = a + b + c + d + e + f + g + h + i + j;
    return sink;
}
KEEP long mixture(int a, double b, const char *c, float d, long e, char f, _Bool g, double h, void *i, int j, short k) {
    sink = a + b + (c != 0) + d + e + f + g + h + (i != 0) + j + k;
    return sink;
}
KEEP int structures(struct point p, int after, struct mixed m, int behind, struct large l, int last) {
    sink = p.x + after + m.n + behind + l.c + last;
    return sink;
}
KEEP struct large returns_large(int a, double b, int c) {
    struct large l = {a, b, c};
    sink = a;
    return l;
}
KEEP struct mixed returns_mixed(int a, long b) {
    struct mixed m = {a, b};
    sink = a;
    return m;
}
KEEP int enums(enum colour a, enum colour b, union either c, int d) {
    sink = a + b + c.i + d;
    return sink;
}
KEEP int pointers(int (*function)(int), text t, char **list, int array[3], const volatile int *v, int n) {
    sink = function(n) + t[0] + list[0][0] + array[1] + *v;
    return sink;
}
KEEP int many(int a, int b, int c, int d, int e, int f, int g, char h, long i, short j) {
    sink = a + b + c + d + e + f + g + h + i + j;
    return sink;
}
KEEP int sum(int count, ...) {
    va_list all;
    va_start(all, count);
    int total = 0;
    for (int i = 0; i < count; i++) total += va_arg(all, int);
    va_end(all);
    sink = total;
    return total;
}
KEEP long extended(long double a, int b, long double c, int d) {
    sink = a + b + c + d;
    return sink;
}
KEEP int old(a, b, c)
    char a;
    double b;
    short c;
{
    sink = a + b + c;
    return sink;
}
static KEEP int hidden(int a, long b) {
    sink = a + b;
    return sink;
}
static int twice(int x) { return 2 * x; }

int main(int argc, char **argv) {
    int array[3] = {1, 2, 3}, v = 5;
    union either e = {.i = 42};
    integers(-1, 200, -300, 60000, -70000, 4000000000u, -5000000000l, 10000000000000000000ul, 255);
    floats(1.5f, -2.25, 3, 4e100, 5, 6, 7, 8, 9.5f, -10.125);
    mixture(argc, 0.1, "text", 1e10f, -7, 'x', 1, 2.5, &v, -8, 9);
    structures((struct point){1, 2}, 3, (struct mixed){4, 5}, 6, (struct large){7, 8, 9}, 10);
    returns_large(1, 2, 3);
    returns_mixed(4, 5);
    enums(GREEN, BLUE, e, 3);
    pointers(twice, "string", argv, array, &v, 6);
    many(1, 2, 3, 4, 5, 6, 7, 'h', 9, 10);
    sum(3, 1, 2, 3);
    extended(1.5L, 2, 3.5L, 4);
    old('a', 2.5, 3);
    hidden(argc, 2);
    hidden(argc + 3, 4);
    return 0;
}
