// A program that itself switches its profiling on and off.
#include <stdio.h>
#include <unistd.h>
#define OPAQUE __attribute__((noinline, noclone))
extern void moncontrol(int), monstartup(unsigned long, unsigned long), _mcleanup(void);
extern char __executable_start, etext;
OPAQUE int work(int x) { __asm__ volatile(""); return x + 1; }
int main(void) {
    int sum = 0;
    monstartup((unsigned long)&__executable_start, (unsigned long)&etext);
    for (int i = 0; i < 10; i++) sum = work(sum);
    moncontrol(0);
    for (int i = 0; i < 10; i++) sum = work(sum);
    moncontrol(1);
    _mcleanup();
    printf("%d\n", sum);
    fflush(stdout);
    _exit(0);
}
