// A jump as the first instruction, of each kind: a tail call, charged to the function that jumps.
//# arc: main -> near_jump 10
//# arc: near_jump -> leaf 10
//# arc: main -> short_jump 20
//# arc: short_jump -> leaf 20
//# arc: main -> memory_jump 30
//# arc: memory_jump -> leaf 30
//# arc: main -> register_jump 40
//# arc: register_jump -> leaf 40
//# arc: main -> chain 50
//# arc: chain -> near_jump 50
//# arc: near_jump -> leaf 50
//# arc: main -> conditional 100
//# arc: conditional -> leaf 50
//# arc: main -> inward 5
//# entry-arc: main -> leaf 200
//# entry-arc: main -> near_jump 60
#include "test.h"
ASM_FUNCTION(leaf, "lea 1(%rdi), %eax\n ret");
ASM_FUNCTION(short_jump, ".byte 0xeb, leaf - . - 1");
ASM_FUNCTION(near_jump, ".byte 0xe9\n .long leaf - . - 4");
ASM_FUNCTION(chain, ".byte 0xeb, near_jump - . - 1");
ASM_FUNCTION(memory_jump, "jmp *leaf_at(%rip)\n .pushsection .data.rel.local, \"aw\"\n leaf_at: .quad leaf\n .popsection");
ASM_FUNCTION(register_jump, "jmp *%rsi");
// A conditional tail call in the first bytes.
ASM_FUNCTION(conditional, "test $1, %dil\n .byte 0x0f, 0x84\n .long leaf - . - 4\n lea 1(%rdi), %eax\n ret");
// A jump over data to the function's own body.
ASM_FUNCTION(inward, "jmp 1f\n .quad 0x9090909090909090\n 1: lea 1(%rdi), %eax\n ret");
int leaf(int), short_jump(int), near_jump(int), chain(int), memory_jump(int), conditional(int), inward(int);
int register_jump(int, int (*)(int));
int main(void) {
    for (int i = 0; i < 10; i++) CHECK(near_jump(i) == i + 1);
    for (int i = 0; i < 20; i++) CHECK(short_jump(i) == i + 1);
    for (int i = 0; i < 30; i++) CHECK(memory_jump(i) == i + 1);
    for (int i = 0; i < 40; i++) CHECK(register_jump(i, leaf) == i + 1);
    for (int i = 0; i < 50; i++) CHECK(chain(i) == i + 1);
    for (int i = 0; i < 100; i++) CHECK(conditional(i) == i + 1);
    for (int i = 0; i < 5; i++) CHECK(inward(i) == i + 1);
    return 0;
}
