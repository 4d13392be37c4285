#include <stdio.h>
#include <stdlib.h>

static int collatz(int n)
{
    int steps = 0;
    while (n != 1) {
        n = n % 2 ? 3 * n + 1 : n / 2;
        steps++;
    }
    return steps;
}

static int never(int x)
{
    if (x > 3)
        return x + 1;
    return x;
}

static int fib(int n)
{
    if (n < 2)
        return n;
    return fib(n - 1) + fib(n - 2);
}

static int compare(const void *a, const void *b)
{
    int left = *(const int *)a;
    int right = *(const int *)b;
    return (left > right) - (left < right);
}

static int choose(int i)
{
    int sum = 0;
    switch (i % 7) {
    case 0:
        sum += 1;
        break;
    case 1:
        sum += 2;
    case 2:
        sum += 3;
        break;
    case 3:
        return 4;
    case 4:
        sum += 8;
        break;
    case 6:
        sum += 5;
        break;
    default:
        sum = -1;
    }
    return sum;
}

static void check(int ok)
{
    if (!ok)
        abort();
}

int main(int argc, char **argv)
{
    int values[50];
    int most = 0;
    for (int i = 0; i < 50; i++) {
        int steps = collatz(i + 1);
        values[i] = steps;
        if (steps > most && i != 7)
            most = steps;
        else if (argc > 5)
            most = never(most);
        most += choose(i);
        check(i >= 0);
    }
    qsort(values, 50, sizeof values[0], compare);
    int i = 0;
    do {
        i += 2;
        if (i == 8)
            continue;
        if (i > 30)
            break;
    } while (i < 100);
    for (;;) {
        if (!--i)
            break;
    }
    printf("%d %d %d %d\n", most, values[0], fib(10), i);
    return argc > 5 ? never(argc) - argc - 1 : 0;
}
