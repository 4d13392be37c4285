// Each of 400 functions calls each of them: 160,000 arcs, and as many paths.
#include "known.h"

typedef void function(int);
static function *const functions[];
static volatile int sink;

#define NAME(n) f##n,
#define BODY(n) static NOINLINE void f##n(int callee) { sink++; if (callee >= 0) { functions[callee](-1); sink++; } }
// A macro is not expanded within itself, so that each digit needs one of its own.
#define LAST(of, n) of(n##0) of(n##1) of(n##2) of(n##3) of(n##4) of(n##5) of(n##6) of(n##7) of(n##8) of(n##9)
#define BODIES(n) LAST(BODY, n)
#define NAMES(n) LAST(NAME, n)
#define SECOND(of, n) of(n##0) of(n##1) of(n##2) of(n##3) of(n##4) of(n##5) of(n##6) of(n##7) of(n##8) of(n##9)
#define ALL(of) SECOND(of, 1) SECOND(of, 2) SECOND(of, 3) SECOND(of, 4)

ALL(BODIES)
static function *const functions[] = {ALL(NAMES)};

int main(void) {
    enum { COUNT = sizeof functions / sizeof *functions };
    for (int caller = 0; caller < COUNT; caller++)
        for (int callee = 0; callee < COUNT; callee++) functions[caller](callee);
    // Each function calls each one, and each one calls it.
    counts("f100", 2 * COUNT, 2 * COUNT - 1, 0);
    counts("f499", 2 * COUNT, 2 * COUNT - 1, 0);
    print_spent();
    return 0;
}
