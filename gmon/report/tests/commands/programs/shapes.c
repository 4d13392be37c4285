#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static jmp_buf back;
static int depth;

static int twice(int x) { return 2 * x; }

static void thrower(int n)
{
    if (n == 0)
        longjmp(back, 7);
    thrower(n - 1);
    depth++;
}

static int gotos(int n)
{
    int sum = 0;
again:
    sum += n;
    if (--n > 0)
        goto again;
    if (sum < 0)
        goto fail;
    return sum;
fail:
    return -1;
}

static int logic(int a, int b, int c)
{
    if ((a && b) || c)
        return 1;
    if (a
        && !b
        && c == 0)
        return 2;
    return a ? b ? 3 : 4 : 5;
}

static unsigned hash(const char *s)
{
    unsigned h = 5381;
    for (; *s; s++) h = h * 33 + *s;
    return h;
}

static int nested(void)
{
    int total = 0;
    for (int i = 0; i < 5; i++)
        for (int j = i; j < 5; j++) {
            if (j == 3) continue;
            for (int k = 0; k < j; k++)
                total += k;
        }
    return total;
}

static int table(int n)
{
    static void *const labels[] = { &&zero, &&one, &&two, &&end };
    int i = 0;
    int steps = 0;
next:
    goto *labels[(i++ + n) % 4];
zero:
    steps += 1;
    goto next;
one:
    steps += 10;
    goto next;
two:
    steps += 100;
    goto next;
end:
    return steps;
}

static void handler(int signal)
{
    depth += signal;
}

static long variadic_sum(int n, ...)
{
    __builtin_va_list list;
    long sum = 0;
    __builtin_va_start(list, n);
    while (n--)
        sum += __builtin_va_arg(list, int);
    __builtin_va_end(list);
    return sum;
}

struct pair { int a, b; };

static struct pair make(int a)
{
    struct pair p = { a, a + 1 };
    return p;
}

int main(void)
{
    signal(SIGUSR1, handler);
    raise(SIGUSR1);
    int n = setjmp(back);
    if (n == 0)
        thrower(5);
    int sum = gotos(10);
    for (int i = 0; i < 8; i++)
        sum += logic(i & 1, i & 2, i & 4);
    sum += hash("a longer string of words");
    sum += nested();
    sum += table(0) + table(1);
    sum += variadic_sum(3, 1, 2, 3);
    struct pair p = make(twice(4));
    char buffer[64];
    memset(buffer, 0, sizeof buffer);
    snprintf(buffer, sizeof buffer, "%d %d %d %d", sum, p.a, p.b,
             twice(n));
    puts(buffer);
    exit(0);
}
