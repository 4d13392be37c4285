// Coroutines that share one stack, as in stack-copies.c, each with a frame of a function that loops through a pointer to its first
// instruction. Such a function has an exit hook with --hooks entry too.
//# arc: main -> run_all 1
//# arc: run_all -> resume 123
//# arc: resume -> switch_to 126
//# arc: resume -> body 3
//# arc: body -> loop 120
//# arc: loop -> work 120
//# arc: work -> work 240
//# arc: work -> yield 120
//# arc: yield -> switch_to 120
//# arc: switch_to -> save 243
//# arc: switch_to -> restore 243
//# callgrind: no, it does not follow stacks that are copied
#include "test.h"
#include "stack-copies.h"
void loop(int);
ASM_FUNCTION(loop,
    "1: lea 1b(%rip), %rdx\n xorb $1, again(%rip)\n jz 2f\n jmp *%rdx\n 2: push %rax\n call *to_work(%rip)\n pop %rax\n ret\n"
    ".pushsection .data\n again: .zero 8\n .popsection");
void (*to_work)(int) = work;
int main(void) {
    worker = loop;
    run_all(__builtin_frame_address(0));
    return 0;
}
