// A call among the first bytes, made in its place where r11 is free: between pushes, as first instruction, through the
// stack, a table and a register; and where it is not free: r11 is kept across the call, passed to the called function,
// or a branch leads to the call.
//# arc: main -> push_call 10
//# arc: push_call -> leaf 10
//# arc: main -> call_first 20
//# arc: call_first -> leaf 20
//# arc: main -> far_call 30
//# arc: far_call -> leaf 30
//# arc: main -> call_table 40
//# arc: call_table -> leaf 40
//# arc: main -> call_stack 50
//# arc: call_stack -> leaf 50
//# arc: main -> call_word 45
//# arc: call_word -> leaf 45
//# arc: main -> keeper 70
//# arc: keeper -> kept 70
//# arc: kept -> leaf 70
//# arc: main -> giver 80
//# arc: giver -> via 80
//# arc: via -> taker 80
//# arc: main -> through 90
//# arc: through -> thunk 90
//# arc: thunk -> leaf 90
//# arc: main -> looping 10
//# arc: looping -> leaf 55
//# arc: main -> again 4
//# arc: again -> leaf 14
//# arc: main -> own_return 10
//# arc: own_return -> tells_return 10
#include "test.h"
#define AROUND(call) "push %rbx\n .cfi_adjust_cfa_offset 8\n " call "\n pop %rbx\n .cfi_adjust_cfa_offset -8\n ret"
ASM_FUNCTION(leaf, "lea 1(%rdi), %eax\n ret");
ASM_FUNCTION(push_call, AROUND("call leaf"));
ASM_FUNCTION(call_first, "call leaf\n add $1, %eax\n ret");
// Nine bytes: where no cave is near a jump fits before the call's end.
ASM_FUNCTION(far_call, "sub $8, %rsp\n .cfi_adjust_cfa_offset 8\n call leaf\n add $8, %rsp\n .cfi_adjust_cfa_offset -8\n ret");
ASM_FUNCTION(call_table, AROUND("call *-800(%rsi,%rdx,8)"));
ASM_FUNCTION(call_word, AROUND("call *word(%rip)") "\n .pushsection .data.rel.local, \"aw\"\n word: .quad leaf\n .popsection");
// call *0(%rsp), with a displacement that no assembler would write.
ASM_FUNCTION(call_stack, "push %rsi\n .cfi_adjust_cfa_offset 8\n .byte 0xff, 0x54, 0x24, 0\n pop %rsi\n .cfi_adjust_cfa_offset -8\n ret");
ASM_FUNCTION(kept, AROUND("call leaf"));
// A caller that knows that what it calls leaves r11 alone.
ASM_FUNCTION(keeper, "mov %rdi, %r11\n call kept\n sub %r11d, %eax\n ret");
ASM_FUNCTION(taker, "lea (%r11,%rdi), %rax\n ret");
ASM_FUNCTION(via, AROUND("call taker"));
ASM_FUNCTION(giver, "mov %rsi, %r11\n call via\n ret");
// As __x86_indirect_thunk_r11 does.
ASM_FUNCTION(thunk, "call *%r11\n ret");
ASM_FUNCTION(through, "mov %rsi, %r11\n call thunk\n ret");
// The call once more, for each of the numbers below.
ASM_FUNCTION(looping, "push %rdi\n .cfi_adjust_cfa_offset 8\n 1: call leaf\n dec %edi\n jns 1b\n pop %rdi\n .cfi_adjust_cfa_offset -8\n ret");
// Back to its start, with a value in r11 that lives on behind the call.
ASM_FUNCTION(again, "push %rdi\n .cfi_adjust_cfa_offset 8\n call leaf\n pop %rdi\n .cfi_adjust_cfa_offset -8\n"
    " dec %edi\n js 1f\n mov %rdi, %r11\n jmp again\n 1: mov $-1, %eax\n cmp $-2, %edi\n cmovg %r11d, %eax\n ret");
ASM_FUNCTION(tells_return, "mov (%rsp), %rax\n ret");
ASM_FUNCTION(own_return, "push %rbx\n .cfi_adjust_cfa_offset 8\n call tells_return\n 1: lea 1b(%rip), %rbx\n sub %rbx, %rax\n pop %rbx\n .cfi_adjust_cfa_offset -8\n ret");
int leaf(int), push_call(int), call_first(int), far_call(int), call_word(int), call_stack(int, int (*)(int));
int call_table(int, int (**)(int), long), keeper(int), looping(int), again(int), through(int, int (*)(int));
long giver(long, long), own_return(void);
int main(void) {
    int (*table[])(int) = {0, leaf};
    for (int i = 0; i < 10; i++) CHECK(push_call(i) == i + 1);
    for (int i = 0; i < 20; i++) CHECK(call_first(i) == i + 2);
    for (int i = 0; i < 30; i++) CHECK(far_call(i) == i + 1);
    for (int i = 0; i < 40; i++) CHECK(call_table(i, table, 101) == i + 1);
    for (int i = 0; i < 45; i++) CHECK(call_word(i) == i + 1);
    for (int i = 0; i < 50; i++) CHECK(call_stack(i, leaf) == i + 1);
    for (int i = 0; i < 70; i++) CHECK(keeper(i) == 1);
    for (long i = 0; i < 80; i++) CHECK(giver(i, 1000) == i + 1000);
    for (int i = 0; i < 90; i++) CHECK(through(i, leaf) == i + 1);
    for (int i = 0; i < 10; i++) looping(i);
    for (int i = 1; i < 5; i++) CHECK(again(i) == 0);
    for (int i = 0; i < 10; i++) CHECK(own_return() == 0);
    return 0;
}
