// A call-heavy thread program. Arguments: threads, millions of calls in each.
#include <pthread.h>
#include <stdlib.h>
static long calls;
__attribute__((noipa)) long leaf(long x) { return x + 1; }
__attribute__((noipa)) void *worker(void *nothing) {
    long x = 0;
    for (long i = 0; i < calls; i++) x = leaf(x);
    return x == calls ? 0 : nothing;
}
int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    calls = (argc > 2 ? atol(argv[2]) : 10) * 1000000L;
    pthread_t t[64];
    for (int i = 0; i < threads && i < 64; i++) pthread_create(&t[i], 0, worker, 0);
    for (int i = 0; i < threads && i < 64; i++) pthread_join(t[i], 0);
    return 0;
}
