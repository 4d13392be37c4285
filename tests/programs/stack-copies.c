// Coroutines that share one stack: to switch, the part that belongs to the present one is copied away, and that of the next one
// back. Python's greenlet does the same.
//# arc: main -> run_all 1
//# arc: run_all -> resume 123
//# arc: resume -> switch_to 126
//# arc: resume -> body 3
//# arc: body -> work 120
//# arc: work -> work 240
//# arc: work -> yield 120
//# arc: yield -> switch_to 120
//# arc: switch_to -> save 243
//# arc: switch_to -> restore 243
//# callgrind: no, it does not follow stacks that are copied
#include "test.h"
#include "stack-copies.h"
int main(void) {
    run_all(__builtin_frame_address(0));
    return 0;
}
