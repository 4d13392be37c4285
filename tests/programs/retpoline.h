// An interpreter whose `goto` through a pointer, and a call through a pointer, are no indirect branches. gcc knows which registers
// `run` leaves alone, and keeps values in them.
//# arc: main -> run 100
//# arc: run -> leaf 500
//# arc: main -> twice 50
//# arc: main -> thrice 50
#include "test.h"

static SEEN long leaf(long x) {
    BARRIER();
    return x * 3 + 1;
}

static SEEN long run(const unsigned char *code, long y) {
    static void *const labels[] = {&&add, &&multiply, &&end};
    goto *labels[*code++];
add:
    y = leaf(y) + 1;
    goto *labels[*code++];
multiply:
    y = leaf(y) * 5;
    goto *labels[*code++];
end:
    return y;
}

static OPAQUE long twice(long x) { return 2 * x; }
static OPAQUE long thrice(long x) { return 3 * x; }

int main(void) {
    static long (*const volatile functions[])(long) = {twice, thrice};
    static const unsigned char code[] = {0, 1, 0, 1, 1, 2};
    long sum = 0, others = 0;
    for (int i = 0; i < 100; i++) {
        sum += run(code, i);
        others += functions[i % 2](i);
    }
    CHECK(sum == 152771750);
    CHECK(others == 12400);
    return 0;
}
