// Sleeping and spinning take wall time alike, but only one of them takes CPU time.
#include "known.h"
#include <time.h>

static NOINLINE void nap(void) {
    struct timespec ms20 = {0, 20000000};
    TIMED("main;nap", nanosleep(&ms20, 0));
}

static NOINLINE void burn(void) { spin(SHORT * 1000, "main;burn"); }

int main(void) {
    for (int i = 0; i < 10; i++) nap(), burn();
    counts("nap", 10, 10, 0);
    counts("burn", 10, 10, 0);
    print_spent();
    return 0;
}
