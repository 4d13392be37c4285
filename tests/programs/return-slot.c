// Functions that remove their return address from its slot, each in another way, and return by means of it. All of them
// would fail if an exit label were in the slot.
//# others: allowed
//# arc: main -> popped 10
//# arc: main -> exchanged 10
//# arc: main -> pushed 10
//# arc: main -> vector 10
//# arc: main -> pointed 10
//# arc: main -> aligned 10
//# arc: main -> handed 10
//# arc: main -> sometimes 10
//# arc: main -> string 10
//# arc: main -> skipping 10
//# arc: skipping -> skips 10
//# arc: main -> left 10
//# arc: left -> leaves 10
//# arc: main -> over 10
//# arc: over -> two_up 10
//# arc: main -> indirect 20
//# arc: indirect -> popped 10
//# arc: indirect -> sometimes 10
//# entry-arc: main -> popped 20
//# entry-arc: main -> sometimes 20
//# callgrind: no, it does not follow returns that are jumps
#include "test.h"
// Hidden, so that any code can reach them.
__attribute__((used, visibility("hidden"))) unsigned long saved[4], stack;
__attribute__((visibility("hidden"))) unsigned long touched;
__attribute__((used, visibility("hidden"))) OPAQUE void touch(void) { touched++; BARRIER(); }
__attribute__((used, visibility("hidden"))) OPAQUE void fetch(unsigned long *slot) { touched++; saved[0] = *slot; BARRIER(); }

#define TOUCH "sub $8, %rsp\ncall touch\nadd $8, %rsp\n"
#define KEEP "mov %rdi, %r12\n"
#define LEAVE "lea 1(%r12), %rax\npop %r12\n"
ASM_FUNCTION(popped, "pop %rax\npush %rax\nmov %rax, saved(%rip)\npush %r12\n" KEEP "call touch\n" LEAVE
             "add $8, %rsp\njmp *saved(%rip)");
ASM_FUNCTION(exchanged, "xor %eax, %eax\nxchg %rax, (%rsp)\nmov %rax, saved(%rip)\npush %r12\n" KEEP "call touch\n" LEAVE
             "mov saved(%rip), %rcx\nmov %rcx, (%rsp)\nret");
ASM_FUNCTION(pushed, "pushq (%rsp)\npopq saved(%rip)\npush %r12\n" KEEP "call touch\n" LEAVE
             "add $8, %rsp\npushq saved(%rip)\nret");
ASM_FUNCTION(vector, "push %r12\n" KEEP "movups (%rsp), %xmm0\nmovups %xmm0, saved(%rip)\ncall touch\n" LEAVE
             "pop %rcx\njmp *8+saved(%rip)");
ASM_FUNCTION(pointed, "lea -32(%rsp), %rcx\nmov 32(%rcx), %rax\nmov %rax, saved(%rip)\npush %r12\n" KEEP "call touch\n" LEAVE
             "lea 8(%rsp), %rsp\njmp *saved(%rip)");
ASM_FUNCTION(aligned, "push %r12\n" KEEP "push %rbx\nmov %rsp, %rbx\nand $-64, %rsp\npush 16(%rbx)\npopq saved(%rip)\n"
             "call touch\nmov %rbx, %rsp\npop %rbx\n" LEAVE "pop %rcx\njmp *saved(%rip)");
ASM_FUNCTION(handed, "push %r12\n" KEEP "lea 8(%rsp), %rdi\ncall fetch\n" LEAVE "add $8, %rsp\njmp *saved(%rip)");
ASM_FUNCTION(sometimes, "push %r12\n" KEEP "call touch\ntest $1, %r12b\nje 1f\n" LEAVE "pop %rcx\njmp *%rcx\n1:" LEAVE "ret");
ASM_FUNCTION(string, "push %r12\n" KEEP "mov %rsp, %rsi\nlea saved(%rip), %rdi\nmov $2, %ecx\nrep movsq\ncall touch\n" LEAVE
             "pop %rcx\njmp *8+saved(%rip)");
// The called function returns behind two bytes of its caller's that must not run.
ASM_FUNCTION(skips, "push %r12\n" KEEP "call touch\n" LEAVE "addq $2, (%rsp)\nret");
ASM_FUNCTION(skipping, "sub $8, %rsp\ncall skips\nud2\nadd $8, %rsp\nret");
// One function puts away where to return to, another one goes there, past the frames between.
ASM_FUNCTION(leaves, "sub $40, %rsp\ncall touch\nlea 1(%r12), %rax\nmov stack(%rip), %rsp\npop %r12\npop %rcx\njmp *saved(%rip)");
ASM_FUNCTION(left, "mov (%rsp), %rax\nmov %rax, saved(%rip)\npush %r12\n" KEEP "mov %rsp, stack(%rip)\nsub $16, %rsp\ncall leaves\nud2");
// Returns to its caller's caller.
ASM_FUNCTION(two_up, TOUCH "lea 1(%rdi), %rax\nadd $8, %rsp\nret");
ASM_FUNCTION(over, "xor %eax, %eax\ncall two_up\nud2");
// A tail call of a function that is not known.
ASM_FUNCTION(indirect, "mov %rdi, %rax\nmov %rsi, %rdi\njmp *%rax");

long popped(long), exchanged(long), pushed(long), vector(long), pointed(long), aligned(long), handed(long), sometimes(long);
long string(long), skipping(long), left(long), over(long);
long indirect(long (*)(long), long);

int main(void) {
    for (long i = 0; i < 10; i++) {
        CHECK(popped(i) == i + 1);
        CHECK(exchanged(i) == i + 1);
        CHECK(pushed(i) == i + 1);
        CHECK(vector(i) == i + 1);
        CHECK(pointed(i) == i + 1);
        CHECK(aligned(i) == i + 1);
        CHECK(handed(i) == i + 1);
        CHECK(sometimes(i) == i + 1);
        CHECK(string(i) == i + 1);
        CHECK(skipping(i) == i + 1);
        CHECK(left(i) == i + 1);
        over(i);
        CHECK(indirect(popped, i) == i + 1);
        CHECK(indirect(sometimes, i) == i + 1);
    }
    CHECK(touched == 140);
    return 0;
}
