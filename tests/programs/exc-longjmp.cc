// longjmp from a catch, exceptions from a frame to which setjmp has returned, and coroutines that throw.
//# arc: main -> jumping 100
//# arc: jumping -> attempt 100
//# arc: attempt -> thrower 100
//# arc: attempt -> leave 100
//# arc: main -> landing 100
//# arc: landing -> leave 100
//# arc: landing -> thrower 100
//# arc: main -> switching 100
//# arc: _start -> coroutine 100
//# arc: coroutine -> attempt_yield 100
//# arc: attempt_yield -> thrower 100
//# arc: attempt_yield -> yield 100
//# callgrind: no, it does not follow stacks that are switched
#include "test.h"
#include <setjmp.h>
#include <ucontext.h>
extern "C" {
static jmp_buf there;
static ucontext_t outside, inside;
static int done;
OPAQUE void thrower(int x) { throw x; }
OPAQUE void leave() { longjmp(there, 1); }
OPAQUE void attempt() { try { thrower(1); } catch (int x) { leave(); } }
OPAQUE int jumping() { if (setjmp(there)) return 1; attempt(); return 0; }
OPAQUE int landing() {
    try { if (setjmp(there)) thrower(2); leave(); } catch (int x) { return x; }
    return 0;
}
OPAQUE void yield() { swapcontext(&inside, &outside); BARRIER(); }
// Comes back to the catch when others have thrown meanwhile.
OPAQUE void attempt_yield() { try { thrower(3); } catch (int x) { yield(); done += x; } }
OPAQUE void coroutine() { attempt_yield(); BARRIER(); }
static char stack[65536];
OPAQUE void switching() {
    getcontext(&inside);
    inside.uc_stack.ss_sp = stack;
    inside.uc_stack.ss_size = sizeof stack;
    inside.uc_link = &outside;
    makecontext(&inside, coroutine, 0);
    swapcontext(&outside, &inside);
    swapcontext(&outside, &inside);
}
}
int main() {
    for (int i = 0; i < 100; i++) { CHECK(jumping() == 1 && landing() == 2); switching(); }
    CHECK(done == 300);
    return 0;
}
