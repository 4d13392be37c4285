// Branches back to the first instruction are loops: one call each, however often they go round.
//# arc: main -> short_loop 3
//# arc: main -> near_loop 3
//# arc: main -> loop_loop 3
//# arc: main -> jrcxz_loop 3
//# arc: main -> jump_loop 3
//# arc: main -> indirect_loop 3
//# arc: main -> two_loops 3
#include "test.h"
ASM_FUNCTION(short_loop, "1: inc %eax\n dec %ecx\n jnz 1b\n ret");
ASM_FUNCTION(near_loop, "1: inc %eax\n dec %ecx\n jz 2f\n jmp 3f\n .fill 200, 1, 0x90\n 3: jmp 1b\n 2: ret");
ASM_FUNCTION(loop_loop, "1: inc %eax\n loop 1b\n ret");
ASM_FUNCTION(jrcxz_loop, "1: jrcxz 2f\n inc %eax\n dec %rcx\n jmp 1b\n 2: ret");
ASM_FUNCTION(jump_loop, "1: inc %eax\n dec %ecx\n jz 2f\n .byte 0xe9\n .long 1b - . - 4\n 2: ret");
ASM_FUNCTION(indirect_loop, "1: inc %eax\n lea 1b(%rip), %rdx\n dec %ecx\n jz 2f\n jmp *%rdx\n 2: ret");
ASM_FUNCTION(two_loops, "1: inc %eax\n dec %ecx\n jz 2f\n test $1, %ecx\n jnz 1b\n jmp 1b\n 2: ret");
#define RUN(name) \
    for (int i = 0; i < 3; i++) { \
        long count = 100, result = 0; \
        __asm__ volatile("sub $128, %%rsp\n call " #name "\n add $128, %%rsp" \
                         : "+c"(count), "+a"(result) : : "rdx", "memory", "cc"); \
        CHECK(result == 100); \
    }
int main(void) {
    RUN(short_loop) RUN(near_loop) RUN(loop_loop) RUN(jrcxz_loop) RUN(jump_loop) RUN(indirect_loop)
    RUN(two_loops)
    return 0;
}
