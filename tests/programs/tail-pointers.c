// States of a machine are functions, which jump to each other and to themselves through pointers.
//# arc: main -> first 100
//# arc: first -> first 200
//# arc: first -> second 300
//# arc: second -> first 300
//# arc: second -> second 100
//# hooks: both
//# callgrind: no, a jump of a function to itself is a loop to it
#include "test.h"

typedef long state(long, long);
static state second;
static state *last;

static OPAQUE long first(long rounds, long sum) {
    if (rounds == 0) return sum;
    last = rounds % 3 ? second : first;
    return last(rounds - 1, sum * 3 + 1);
}

static OPAQUE long second(long rounds, long sum) {
    last = rounds % 2 ? first : second;
    return last(rounds - 1, sum * 5 + 1);
}

int main(void) {
    for (int i = 0; i < 100; i++) {
        long sum = first(9, i);
        CHECK(sum == 151875L * i + 72471);
    }
    return 0;
}
