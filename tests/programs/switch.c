// Jump tables, one of which leads back into the function's first bytes, and computed goto.
//# arc: main -> choose 1200
//# arc: choose -> leaf 100
//# arc: main -> back 10
//# arc: main -> machine 10
//# arc: machine -> leaf 30
#include "test.h"
OPAQUE int leaf(int x) { BARRIER(); return x; }
OPAQUE int choose(int x) {
    switch (x) {
    case 0: BARRIER(); return 3;
    case 1: { int r = leaf(x); BARRIER(); return r + 1; }
    case 2: __asm__ volatile("nop"); return 9;
    case 3: __asm__ volatile("nop;nop"); return 8;
    case 4: __asm__ volatile("nop;nop;nop"); return 17;
    case 5: return x * x;
    case 6: __asm__ volatile("nop;nop;nop;nop"); return x << 3;
    case 7: return -x;
    case 8: __asm__ volatile("" : "+r"(x)); return x ^ 21;
    case 9: return x + 100;
    case 10: __asm__ volatile("nop" : "+r"(x)); return x / 3;
    default: return 0;
    }
}
// Entry 0 of the table is the function's first instruction, entry 1 its second (byte 3).
ASM_FUNCTION(back,
    "lea 1(%rax), %eax\n"
    "back_1: inc %eax\n dec %ecx\n jz 2f\n mov %ecx, %edx\n and $1, %edx\n"
    "lea back_table(%rip), %rsi\n movslq (%rsi, %rdx, 4), %rdx\n add %rsi, %rdx\n jmp *%rdx\n 2: ret\n"
    ".pushsection .rodata\n .p2align 2\n back_table: .long back - back_table, back_1 - back_table\n .popsection");
OPAQUE int machine(const char *code) {
    static void *const ops[] = {&&add, &&call, &&stop};
    int r = 0;
    goto *ops[*code++ - '0'];
add: r++; BARRIER(); goto *ops[*code++ - '0'];
call: r += leaf(2); BARRIER(); goto *ops[*code++ - '0'];
stop: return r;
}
int main(void) {
    int total = 0;
    for (int i = 0; i < 1200; i++) total += choose(i % 12);
    CHECK(total == 100 * (3 + 2 + 9 + 8 + 17 + 25 + 48 - 7 + 29 + 109 + 3));
    for (int i = 0; i < 10; i++) {
        long count = 100, result = 0;
        __asm__ volatile("sub $128, %%rsp\n call back\n add $128, %%rsp"
                         : "+c"(count), "+a"(result) : : "rdx", "rsi", "memory", "cc");
        CHECK(result == 150);
    }
    for (int i = 0; i < 10; i++) CHECK(machine("0101012") == 9);
    return 0;
}
