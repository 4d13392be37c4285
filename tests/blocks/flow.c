// Paths through functions: tables, labels as values, loops, recursion, tail calls, callbacks, longjmp.
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPAQUE __attribute__((noipa))

static jmp_buf place;

OPAQUE int table(int x) {
    switch (x) {
    case 0: return 5;
    case 1: return 7;
    case 2: puts("two"); return 9;
    case 3: return 11;
    case 4: return x * 3;
    case 5: return x * x;
    case 6: return 66;
    case 7: abort();
    default: return -1;
    }
}

OPAQUE void nothing(int x) {
    switch (x) {
    case 1: puts("a"); break;
    case 2: puts("b"); break;
    case 4: puts("c"); break;
    case 5: return;
    case 6: puts("d"); return;
    case 8: puts("e");
    }
}

OPAQUE int labels(const char *program) {
    static const void *const to[] = {&&one, &&twice, &&less, &&end};
    int r = 0;
    goto *to[*program++ - 'a'];
one:
    r += 1;
    goto *to[*program++ - 'a'];
twice:
    r *= 2;
    goto *to[*program++ - 'a'];
less:
    r -= 3;
    goto *to[*program++ - 'a'];
end:
    return r;
}

OPAQUE int distances(const char *program) {
    static const int to[] = {&&one - &&end, &&twice - &&end, &&end - &&end};
    int r = 1;
next:
    goto *(&&end + to[*program++ - 'a']);
one:
    r += 1;
    goto next;
twice:
    r *= 2;
    goto next;
end:
    return r;
}

OPAQUE int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

OPAQUE int odd(unsigned n);
OPAQUE int even(unsigned n) { return n == 0 ? 1 : odd(n - 1); }
OPAQUE int odd(unsigned n) { return n == 0 ? 0 : even(n - 1); }

OPAQUE void leave(int x) {
    if (x > 2)
        longjmp(place, x);
}

OPAQUE int jumps(void) {
    volatile int sum = 0;
    for (volatile int i = 0; i < 6; i++) {
        int v = setjmp(place);
        if (v == 0)
            leave(i);
        else
            sum += v;
    }
    return sum;
}

OPAQUE long shifts(unsigned long x, int by) {
    long r = 0;
    while (x) {
        if (x & 1)
            r += by > 3 ? 1l << by : -1;
        x >>= 1;
    }
    return r;
}

static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static void last(void) { puts("at exit"); }

int main(int argc, char **argv) {
    long sum = 0;
    int numbers[60];
    atexit(last);
    for (int i = 0; i < 30; i++) {
        if (i % 10 != 7)
            sum += table(i % 10);
        nothing(i % 9);
    }
    sum += labels("abcbaabd") + distances("abbabc") + fib(15) + even(1001) + jumps();
    for (int i = 0; i < 60; i++)
        numbers[i] = i * 37 % 60;
    qsort(numbers, 60, sizeof numbers[0], compare);
    for (int i = 0; i < 60; i++)
        sum += shifts((unsigned long)numbers[i] * 977, i % 7) + numbers[i] * i;
    char text[64];
    memset(text, 'x', sizeof text);
    sum += text[argc % 64];
    printf("%ld %d\n", sum, argv[1] != NULL);
    exit(sum == 0);
}
