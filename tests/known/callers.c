// Two callers of the same function, one of which gives it a hundred times as much to do. gprof divides the function's time by
// numbers of calls, and is wrong by a factor of fifty.
#include "known.h"

static NOINLINE void work(uint64_t ticks, const char *path) { spin(ticks, path); }

static NOINLINE void easy(void) {
    for (int i = 0; i < 10; i++) work(SHORT / 5, "main;easy;work");
    spin(SHORT, "main;easy");
}

static NOINLINE void hard(void) {
    for (int i = 0; i < 10; i++) work(SHORT * 20, "main;hard;work");
    spin(SHORT, "main;hard");
}

int main(void) {
    for (int i = 0; i < 10; i++) easy(), hard();
    spin(SHORT * 200, "main");
    counts("main", 1, 1, 0);
    counts("easy", 10, 10, 0);
    counts("hard", 10, 10, 0);
    counts("work", 200, 200, 0);
    print_spent();
    return 0;
}
