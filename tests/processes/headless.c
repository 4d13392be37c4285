// A program to attach to: "go on" ends its main thread, and another one reads commands in its place.
#include <pthread.h>
#include <string.h>
#include <stdio.h>
#include <stdlib.h>
static volatile int sink;
__attribute__((noinline, noclone)) void step(void) { sink++; }
static void *obey(void *argument) {
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "go on\n")) {
            pthread_t other;
            pthread_create(&other, 0, obey, 0);
            pthread_exit(0);
        }
        for (int n = atoi(line); n; n--) step();
        puts("done");
    }
    printf("the end, %d\n", sink);
    exit(6);
}
int main(void) {
    setlinebuf(stdout);
    puts("ready");
    return obey(0) != 0;
}
