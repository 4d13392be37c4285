// Makes as many calls as its first argument says if there are two, and then ends as its last argument says, four calls deep.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((noinline)) static int many(int n) { __asm__ volatile("" : "+r"(n)); return n; }
__attribute__((noinline)) static void third(int how) {
    if (how == 0) *(volatile int *)8 = 1;
    if (how == 1) abort();
    if (how == 2) kill(getpid(), SIGKILL);
    if (how == 3) _exit(7);
    many(how);
}
__attribute__((noinline)) static void second(int how) { many(1); third(how); many(2); }
__attribute__((noinline)) static void first(int how) { many(3); second(how); many(4); }
int main(int argc, char **argv) {
    int calls = argc > 2 ? atoi(argv[1]) : 3000000;
    for (int i = 0; i < calls; i++) many(i);
    first(atoi(argv[argc - 1]));
    return 0;
}
