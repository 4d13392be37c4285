// siglongjmp out of a handler that runs on a stack of its own: the frames that the signal has interrupted are gone, and a
// later callback does not belong to them.
//# arc: main -> around 20
//# arc: around -> jumping 20
//# arc: jumping -> interrupted 20
//# arc: interrupted -> deeper 20
//# arc: deeper -> handler 20
//# arc: handler -> leave 20
//# arc: leave -> nothing 20
//# arc: jumping -> compare 20
//# arc: around -> compare 20
//# arc: compare -> nothing 40
//# hooks: both
//# callgrind: no, it starts a call stack of its own for a signal
#include "boundary.h"
#include <setjmp.h>
#include <signal.h>
static sigjmp_buf there;
OPAQUE void leave(void) { nothing(); siglongjmp(there, 1); }
OPAQUE void handler(int signal) { leave(); BARRIER(); }
OPAQUE void deeper(void) {
    char room[3000];
    USED(room);
    raise(SIGUSR1);
    USED(room);
}
OPAQUE void interrupted(void) {
    char room[3000];
    USED(room);
    deeper();
    USED(room);
}
OPAQUE void jumping(void) {
    int v = 5;
    // Below the frames that the jump has left, which nothing overwrites.
    if (sigsetjmp(there, 1)) {
        char *room = alloca(20000);
        USED(room);
        CHECK(search(&v, &v, 1, sizeof v, compare) == &v);
        BARRIER();
        return;
    }
    interrupted();
}
OPAQUE void around(void) {
    int v = 5;
    jumping();
    CHECK(search(&v, &v, 1, sizeof v, compare) == &v);
    BARRIER();
}
int main(void) {
    stack_t stack = {.ss_size = 1 << 17, .ss_sp = malloc(1 << 17)};
    CHECK(!sigaltstack(&stack, 0));
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    CHECK(!sigaction(SIGUSR1, &action, 0));
    for (int i = 0; i < 20; i++) around();
    return 0;
}
