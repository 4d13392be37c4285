// Branches to the bytes 1 to 4 of a function: a jump written over the entry must not be landed in.
//# arc: main -> byte1 3
//# arc: main -> byte2 3
//# arc: main -> byte3 3
//# arc: main -> byte4 3
//# arc: main -> far1 3
//# arc: main -> table3 3
//# arc: main -> twice 3
#include "test.h"
ASM_FUNCTION(byte1, "nop\n 1: inc %eax\n dec %ecx\n jnz 1b\n ret");
ASM_FUNCTION(byte2, "xor %eax, %eax\n 1: inc %eax\n dec %ecx\n jnz 1b\n ret");
ASM_FUNCTION(byte3, "xor %rax, %rax\n 1: inc %eax\n loop 1b\n ret");
ASM_FUNCTION(byte4, "lea 0(%rax), %rax\n nop\n 1: inc %eax\n dec %ecx\n jnz 1b\n ret");
ASM_FUNCTION(far1, "nop\n 1: inc %eax\n dec %ecx\n jz 2f\n jmp 3f\n .fill 300, 1, 0x90\n 3: jmp 1b\n 2: ret");
// Reached only through a table: nothing in the code says that something lands on byte 3.
ASM_FUNCTION(table3, "xor %rax, %rax\n table3_in: inc %eax\n dec %ecx\n jz 2f\n mov table3_at(%rip), %rdx\n"
                     " lea table3_at(%rip), %rsi\n add %rsi, %rdx\n jmp *%rdx\n 2: ret\n"
                     ".pushsection .data\n .p2align 3\n table3_at: .quad table3_in - table3_at\n .popsection");
ASM_FUNCTION(twice, "nop\n 1: nop\n 2: inc %eax\n dec %ecx\n jz 3f\n test $1, %ecx\n jnz 1b\n jmp 2b\n 3: ret");
#define RUN(name) \
    for (int i = 0; i < 3; i++) { \
        long count = 100, result = 0; \
        __asm__ volatile("sub $128, %%rsp\n call " #name "\n add $128, %%rsp" \
                         : "+c"(count), "+a"(result) : : "rdx", "rsi", "memory", "cc"); \
        CHECK(result == 100); \
    }
int main(void) {
    RUN(byte1) RUN(byte2) RUN(byte3) RUN(byte4) RUN(far1) RUN(table3) RUN(twice)
    return 0;
}
