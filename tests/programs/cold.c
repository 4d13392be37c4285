// Cold parts: jumped to, never called; calls that they make are charged to the parent.
//# arc: main -> work 1000
//# arc: work -> hot 990
//# arc: work -> rare 20
#include "test.h"
int total;
OPAQUE void hot(void) { total++; BARRIER(); }
OPAQUE __attribute__((cold)) void rare(int x) { total += x; BARRIER(); }
OPAQUE int work(int x) {
    if (__builtin_expect(x % 100 == 0, 0)) {
        rare(x);
        rare(0 * x);
        BARRIER();
        return -1;
    }
    hot();
    BARRIER();
    return 1;
}
int main(void) {
    int sum = 0;
    for (int i = 0; i < 1000; i++) sum += work(i);
    CHECK(sum == 980);
    return 0;
}
