// One indirect call site with many targets: the arc's key is (site, target), not the site.
//# arc: main -> call 1600
//# arc: call -> f0 100
//# arc: call -> f1 100
//# arc: call -> f2 100
//# arc: call -> f3 100
//# arc: call -> f4 100
//# arc: call -> f5 100
//# arc: call -> f6 100
//# arc: call -> f7 100
//# arc: call -> f8 100
//# arc: call -> f9 100
//# arc: call -> f10 100
//# arc: call -> f11 100
//# arc: call -> f12 100
//# arc: call -> f13 100
//# arc: call -> f14 100
//# arc: call -> f15 100
//# stdout: 12000
#include "test.h"
#define F(n) OPAQUE int f##n(void) { BARRIER(); return n; }
F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12) F(13) F(14) F(15)
int (*table[])(void) = {f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15};
OPAQUE int call(int i) { int r = table[i](); BARRIER(); return r; }
int main(void) {
    int total = 0;
    for (int i = 0; i < 1600; i++) total += call(i & 15);
    printf("%d\n", total);
    return 0;
}
