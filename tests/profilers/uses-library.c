#include <pthread.h>
#include <stdio.h>
int call_back(int (*f)(int), int times);
__attribute__((noinline)) int callee(int x) { __asm__ volatile(""); return x - 2; }
static void *thread(void *unused) { return (void *)(long)call_back(callee, 50000); }
int main(void) {
    pthread_t t[4];
    long sum = 0;
    for (int i = 0; i < 4; i++) pthread_create(&t[i], 0, thread, 0);
    for (int i = 0; i < 4; i++) { void *r; pthread_join(t[i], &r); sum += (long)r; }
    printf("%ld\n", sum);
    return 0;
}
