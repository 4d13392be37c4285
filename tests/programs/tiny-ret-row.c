// Sixteen functions of one byte each in a row: there is no room for a patch, and all of them are counted.
//# arc: main -> r0 1
//# arc: main -> r1 2
//# arc: main -> r2 3
//# arc: main -> r3 4
//# arc: main -> r4 5
//# arc: main -> r5 6
//# arc: main -> r6 7
//# arc: main -> r7 8
//# arc: main -> r8 9
//# arc: main -> r9 10
//# arc: main -> r10 11
//# arc: main -> r11 12
//# arc: main -> r12 13
//# arc: main -> r13 14
//# arc: main -> r14 15
//# arc: main -> r15 16
// In a program of musl's, too little code is near that could be overwritten: this is a listed refusal.
//# not: musl-dynamic
#include "test.h"
#define R(n) ASM_FUNCTION(r##n, "ret"); void r##n(void);
R(0) R(1) R(2) R(3) R(4) R(5) R(6) R(7) R(8) R(9) R(10) R(11) R(12) R(13) R(14) R(15)
void (*table[])(void) = {r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, r12, r13, r14, r15};
int main(void) {
    for (int i = 0; i < 16; i++)
        for (int k = 0; k <= i; k++) table[i]();
    return 0;
}
