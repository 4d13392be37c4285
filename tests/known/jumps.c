// longjmp out of nested calls, which end with the jump: what follows is no longer their time.
#include "known.h"
#include <setjmp.h>

static jmp_buf back, second;

static NOINLINE void inner(int jumps) {
    spin(SHORT, jumps ? "main;rounds;outer;middle;inner" : "main;plain;outer;middle;inner");
    if (jumps) longjmp(back, 1);
}

static NOINLINE void middle(int jumps) {
    spin(2 * SHORT, jumps ? "main;rounds;outer;middle" : "main;plain;outer;middle");
    inner(jumps);
    spin(3 * SHORT, "main;plain;outer;middle");
}

static NOINLINE void outer(int jumps) {
    spin(SHORT, jumps ? "main;rounds;outer" : "main;plain;outer");
    middle(jumps);
}

static NOINLINE void plain(void) { outer(0); }

static NOINLINE void rounds(void) {
    for (volatile int i = 0; i < 30; i++) {
        if (!setjmp(back)) outer(1);
        spin(4 * SHORT, "main;rounds");
    }
}

static NOINLINE void dive(int depth) {
    spin(SHORT, depth == 5 ? "main;diver;dive" : "main;diver;dive;dive");
    if (depth > 1) dive(depth - 1);
    longjmp(second, 1);
}

static NOINLINE void diver(void) {
    for (volatile int i = 0; i < 30; i++) {
        if (!setjmp(second)) dive(5);
        // Nothing is called between the jump and the end of the function in every second round.
        if (i & 1) spin(4 * SHORT, "main;diver");
    }
}

// A call that a jump has left is still open when its caller ends.
static NOINLINE void leaver(void) {
    spin(SHORT, "main;last;leaver");
    longjmp(second, 1);
}

static NOINLINE void last(void) {
    if (!setjmp(second)) leaver();
}

int main(void) {
    rounds();
    for (int i = 0; i < 10; i++) plain();
    diver();
    for (volatile int i = 0; i < 100; i++) last();
    spin(1000 * SHORT, "main");
    counts("rounds", 1, 1, 0);
    counts("outer", 40, 40, 0);
    counts("middle", 40, 40, 0);
    counts("inner", 40, 40, 0);
    counts("dive", 150, 30, 0);
    counts("diver", 1, 1, 0);
    counts("leaver", 100, 100, 0);
    counts("last", 100, 100, 0);
    print_spent();
    return 0;
}
