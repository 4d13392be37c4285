// A crash: the status is the program's own, and the profile says what happened before.
//# arc: main -> f 1000
//# arc: main -> crash 1
//# exit: 139
//# callgrind: no, it prints of the crash and ends otherwise
#include "test.h"
OPAQUE void f(void) { BARRIER(); }
OPAQUE void crash(volatile int *p) { *p = 1; }
int main(void) { for (int i = 0; i < 1000; i++) f(); crash(0); return 0; }
