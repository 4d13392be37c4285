// A hundred million rounds of tail calls among three functions, one of them by a pointer: the use of memory does not grow.
//# others: allowed
//# arc: main -> ping 2
//# arc: pong -> third 33333666
//# arc: ping -> pong 33333668
//# arc: third -> ping 33333666
//# entry-arc: main -> ping 33333668
//# entry-arc: main -> pong 33333668
//# entry-arc: main -> third 33333666
//# stdout: ok
//# callgrind: no, it keeps a stack entry for each round
#include "test.h"
#include <sys/resource.h>
ASM_FUNCTION(ping, "sub $1, %rdi\n jb 1f\n jmp pong\n 1: mov $1, %eax\n ret");
ASM_FUNCTION(pong, "sub $1, %rdi\n jb 1f\n jmp third\n 1: mov $2, %eax\n ret");
ASM_FUNCTION(third, "sub $1, %rdi\n jb 1f\n jmp *%rsi\n 1: mov $3, %eax\n ret");
int ping(long, void *), pong(long), third(long);
static long most(void) { struct rusage u; getrusage(RUSAGE_SELF, &u); return u.ru_maxrss; }
int main(void) {
    ping(1000, (void *)ping);
    long before = most();
    CHECK(ping(100000000, (void *)ping) == 2);
    CHECK(most() < before + 1024);
    printf("ok\n");
    return 0;
}
