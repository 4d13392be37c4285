// An operation of an interpreter with a label table, one of whose labels is its first instruction, that tail-calls another operation and is
// tail-called by it through a pointer. The loops to its first instruction are no calls, whoever has entered it, and keep its red zone.
//# arc: main -> looper 10
//# arc: main -> bounce 10
//# arc: looper -> bounce 40
//# arc: bounce -> looper 50
//# entry-arc: main -> looper 60
//# entry-arc: main -> bounce 10
//# entry-arc: looper -> bounce 40
//# callgrind: no, it takes each way from one function to another for a call, and keeps the frame of each
#include "test.h"

ASM_FUNCTION(looper,
    "lea 1(%rax), %rax\n mov %rax, -8(%rsp)\n mov %rcx, -16(%rsp)\n"
    ".Llooper_1: movzbl (%rcx), %edx\n inc %rcx\n lea looper_table(%rip), %rsi\n mov (%rsi, %rdx, 8), %rdx\n jmp *%rdx\n"
    ".Llooper_2: mov -8(%rsp), %rax\n lea (%rax, %rax, 2), %rax\n jmp .Llooper_1\n"
    ".Llooper_3: mov -16(%rsp), %rdx\n cmp %rcx, %rdx\n ja 1f\n jmp bounce\n 1: ud2\n"
    ".Llooper_4: ret\n"
    ".pushsection .data.rel.ro, \"aw\"\n .p2align 3\n looper_table: .quad looper, .Llooper_2, .Llooper_3, .Llooper_4\n .popsection");
ASM_FUNCTION(bounce,
    "add $5, %rax\n mov to_looper(%rip), %rdx\n jmp *%rdx\n"
    ".pushsection .data.rel.ro, \"aw\"\n .p2align 3\n to_looper: .quad looper\n .popsection");

static inline __attribute__((always_inline)) long call(void (*function)(void), const void *code, long value) {
    __asm__ volatile("sub $128, %%rsp\n call *%2\n add $128, %%rsp"
                     : "+c"(code), "+a"(value) : "r"(function) : "rdx", "rsi", "memory", "cc");
    return value;
}
void looper(void), bounce(void);

int main(void) {
    static const unsigned char code[] = {0, 1, 2, 0, 1, 2, 3};
    for (int i = 0; i < 10; i++) {
        CHECK(call(looper, code, 1) == 54);
        CHECK(call(bounce, code, 1) == 99);
    }
    return 0;
}
