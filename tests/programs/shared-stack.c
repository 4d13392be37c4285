// Coroutines that share one stack and are switched by hand-written code that pushes and pops registers: the bytes in use are copied
// away and back by the scheduler, on a stack of its own. So no function that is hooked or that the agent knows sees the switch, and
// several frames of one function with different callers have the same place. (libaco and libco do the same.)
//
// `first` and `second` are called at the same depth in all coroutines, through pointers, so that they need cells. Coroutine 0 runs
// alone before the others, and works again after they have ended.
//# arc: main -> run_all 1
//# arc: run_all -> run 33
//# arc: run -> start 3
//# arc: _start -> body 3
//# arc: run -> switch_to 33
//# arc: body -> first 20
//# arc: body -> second 10
//# arc: first -> first 20
//# arc: second -> second 10
//# arc: first -> yield 20
//# arc: second -> yield 10
//# arc: yield -> switch_to 30
//# arc: body -> switch_to 3
//# callgrind: no, it does not follow stacks that are copied
#include "test.h"
#include "shared-stack.h"

int main(void) {
    run_all();
    return 0;
}
