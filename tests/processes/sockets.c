// A program to attach to, with many threads that send to each other and receive.
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>
#include "obey.h"
#define PAIRS 20
static volatile int sink, stop;
__attribute__((noinline, noclone)) void step(void) { sink++; }
static int sockets[PAIRS][2];
static void *echo(void *socket) {
    char c;
    while (recv(*(int *)socket, &c, 1, 0) == 1) send(*(int *)socket, &c, 1, MSG_NOSIGNAL);
    return 0;
}
static void *ask(void *socket) {
    char c = 'x';
    long wrong = 0;
    while (!stop) {
        wrong += send(*(int *)socket, &c, 1, 0) != 1;
        wrong += recv(*(int *)socket, &c, 1, 0) != 1 || c != 'x';
    }
    shutdown(*(int *)socket, SHUT_RDWR);
    return (void *)wrong;
}
int main(void) {
    pthread_t threads[PAIRS][2];
    for (int n = 0; n < PAIRS; n++) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets[n])) return 9;
        pthread_create(&threads[n][0], 0, ask, &sockets[n][0]);
        pthread_create(&threads[n][1], 0, echo, &sockets[n][1]);
    }
    OBEY();
    stop = 1;
    long wrong = 0;
    for (int n = 0; n < PAIRS; n++) {
        void *result;
        pthread_join(threads[n][0], &result);
        pthread_join(threads[n][1], 0);
        wrong += (long)result;
    }
    printf("%ld wrong\n", wrong);
    return 3;
}
