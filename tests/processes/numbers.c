// A program to attach to, with a thread that waits for ever, above numbers that are addresses of code.
#include <poll.h>
#include <pthread.h>
#include "obey.h"
static volatile int sink;
__attribute__((noinline, noclone)) void step(void) { sink++; }
static void *wait_here(void *argument) {
    volatile unsigned long numbers[64];
    for (int n = 0; n < 64; n++) numbers[n] = (unsigned long)step + n % 16;
    for (;;) poll(0, 0, -1);
    return (void *)numbers[sink];
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, wait_here, 0);
    OBEY();
    return 2;
}
