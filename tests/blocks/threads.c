// Eight threads at a time, again and again, and signals for the first one.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define OPAQUE __attribute__((noipa))

static volatile int signals;

OPAQUE void handler(int number) {
    if (number == SIGUSR1)
        signals++;
}

OPAQUE long work(long n, int kind) {
    long sum = 0;
    for (long i = 0; i < n; i++) {
        if (i % 3 == 0)
            sum += i;
        else if (i & kind)
            sum ^= i;
        else
            sum -= 2;
    }
    return sum;
}

OPAQUE void *run(void *argument) {
    long kind = (long)argument, sum = 0;
    for (int i = 0; i < 300; i++)
        sum += work(50 + i % 5, (int)kind);
    return (void *)sum;
}

int main(void) {
    long total = 0;
    signal(SIGUSR1, handler);
    for (int round = 0; round < 5; round++) {
        pthread_t threads[8];
        for (long i = 0; i < 8; i++)
            pthread_create(&threads[i], NULL, run, (void *)i);
        for (int i = 0; i < 10; i++)
            raise(SIGUSR1);
        for (int i = 0; i < 8; i++) {
            void *sum;
            pthread_join(threads[i], &sum);
            total += (long)sum;
        }
    }
    printf("%ld %d\n", total, signals);
    return 0;
}
