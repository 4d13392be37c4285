// Executes itself, over and over: its argument is how often.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static volatile int sink;
__attribute__((noinline, noclone)) void step(void) { sink++; }
int main(int argc, char **argv) {
    int left = atoi(argv[1]);
    char text[16];
    for (int n = 0; n < 20000; n++) step();
    if (!left) {
        puts("the end");
        return 6;
    }
    snprintf(text, sizeof text, "%d", left - 1);
    execl("/proc/self/exe", argv[0], text, (char *)0);
    return 9;
}
