// A call or a jump as the first instructions: after relocation, each would have another meaning.
//# arc: main -> call_first 10
//# arc: call_first -> leaf 10
//# arc: main -> sub_call 20
//# arc: sub_call -> leaf 20
//# arc: main -> call_memory 30
//# arc: call_memory -> leaf 30
//# arc: main -> push_call 40
//# arc: push_call -> leaf 40
//# arc: main -> call_register 50
//# arc: call_register -> leaf 50
//# arc: main -> call_next 60
#include "test.h"
ASM_FUNCTION(leaf, "lea 1(%rdi), %eax\n ret");
ASM_FUNCTION(call_first, "call leaf\n add $1, %eax\n ret");
ASM_FUNCTION(sub_call, "sub $8, %rsp\n .cfi_adjust_cfa_offset 8\n call leaf\n add $8, %rsp\n .cfi_adjust_cfa_offset -8\n ret");
ASM_FUNCTION(call_memory, "call *leaf_at(%rip)\n ret\n .pushsection .data.rel.local, \"aw\"\n leaf_at: .quad leaf\n .popsection");
ASM_FUNCTION(push_call, "push %rbx\n .cfi_adjust_cfa_offset 8\n call leaf\n pop %rbx\n .cfi_adjust_cfa_offset -8\n ret");
ASM_FUNCTION(call_register, "call *%rsi\n ret");
// "call the next instruction; pop": how old code finds its own address. It is no call of a function.
ASM_FUNCTION(call_next, "call 1f\n 1: pop %rax\n lea 1b(%rip), %rcx\n sub %rcx, %rax\n ret");
int leaf(int), call_first(int), sub_call(int), call_memory(int), push_call(int);
int call_register(int, int (*)(int));
long call_next(void);
int main(void) {
    for (int i = 0; i < 10; i++) CHECK(call_first(i) == i + 2);
    for (int i = 0; i < 20; i++) CHECK(sub_call(i) == i + 1);
    for (int i = 0; i < 30; i++) CHECK(call_memory(i) == i + 1);
    for (int i = 0; i < 40; i++) CHECK(push_call(i) == i + 1);
    for (int i = 0; i < 50; i++) CHECK(call_register(i, leaf) == i + 1);
    for (int i = 0; i < 60; i++) CHECK(call_next() == 0);
    return 0;
}
