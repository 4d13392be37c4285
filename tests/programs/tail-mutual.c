// Ten million rounds of mutual tail calls: the use of memory is constant, and the counts are right.
//# arc: main -> ping 1
//# arc: ping -> pong 5000000
//# arc: pong -> ping 5000000
//# entry-arc: main -> ping 5000001
//# entry-arc: main -> pong 5000000
//# callgrind: no, it keeps a stack entry for each round
#include "test.h"
ASM_FUNCTION(ping, "sub $1, %rdi\n jb 1f\n jmp pong\n 1: mov $1, %eax\n ret");
ASM_FUNCTION(pong, "sub $1, %rdi\n jb 1f\n jmp ping\n 1: mov $2, %eax\n ret");
int ping(long), pong(long);
int main(void) { CHECK(ping(10000000) == 1); return 0; }
