// Tail calls: a function that another one has jumped to is a part of it, as callgrind has it.
#include "known.h"

static NOINLINE int target(const char *path) {
    spin(4 * SHORT, path);
    return 1;
}

// With -O2 these end in a jump.
static NOINLINE int jumper(void) {
    spin(SHORT, "main;jumper");
    return target("main;jumper;target");
}

static NOINLINE int second(void) {
    spin(2 * SHORT, "main;first;second");
    return target("main;first;second;target");
}

static NOINLINE int first(void) {
    spin(3 * SHORT, "main;first");
    return second();
}

// A circle of jumps: each call of `odd` ends where the next one begins, with the `even` that it has jumped to.
static NOINLINE int even(int n);

static NOINLINE int odd(int n) {
    spin(SHORT, "main;circle;even;odd");
    return even(n - 1);
}

static NOINLINE int even(int n) {
    spin(SHORT, n == 8 ? "main;circle;even" : "main;circle;even;odd;even");
    return n == 0 ? 0 : odd(n - 1);
}

static NOINLINE int circle(void) {
    int n = even(8);
    __asm__ volatile("" : "+r"(n));
    return n;
}

int main(void) {
    for (int i = 0; i < 50; i++) {
        if (jumper() + first() + circle() + target("main;target") != 3) return 1;
    }
    counts("jumper", 50, 50, 0);
    counts("first", 50, 50, 0);
    counts("second", 50, 50, 0);
    counts("target", 150, 150, 0);
    counts("circle", 50, 50, 0);
    print_spent();
    return 0;
}
