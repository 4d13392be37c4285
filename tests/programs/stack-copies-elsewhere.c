// Coroutines that share one stack, as in stack-copies.c, which is not the thread's own: nobody says where it ends. Each has more frames
// than a search for a caller looks through.
//# arc: main -> on_stack 1
//# arc: on_stack -> elsewhere 1
//# arc: elsewhere -> run_all 1
//# arc: run_all -> resume 123
//# arc: resume -> switch_to 126
//# arc: resume -> body 3
//# arc: body -> deeper 120
//# arc: deeper -> deeper 24000
//# arc: deeper -> work 120
//# arc: work -> work 240
//# arc: work -> yield 120
//# arc: yield -> switch_to 120
//# arc: switch_to -> save 243
//# arc: switch_to -> restore 243
//# callgrind: no, it does not follow stacks that are copied
#include "test.h"
#include "stack-copies.h"
enum { ROOM = 1 << 20, DEPTH = 200 };
OPAQUE void deeper(int n) {
    volatile int room[100];
    room[n % 100] = n;
    // The argument's remainder is how deep `work` goes.
    if (n < 5 * DEPTH) worker(n + 5);
    else works(n % 5);
    CHECK(room[n % 100] == n);
    BARRIER();
}
OPAQUE void elsewhere(void) {
    run_all(__builtin_frame_address(0));
    BARRIER();
}
void on_stack(char *top);
ASM_FUNCTION(on_stack, "push %rbx\n mov %rsp, %rbx\n mov %rdi, %rsp\n call elsewhere\n mov %rbx, %rsp\n pop %rbx\n ret");
int main(void) {
    // The stack ends with zeros.
    char *room = calloc(ROOM, 1);
    worker = deeper;
    on_stack(room + ROOM - 1024);
    free(room);
    return 0;
}
