// A program that changes its folder: the profile is written where it was asked for.
//# arc: main -> go 1
#include "test.h"
#include <unistd.h>
OPAQUE int go(void) { int r = chdir("/"); BARRIER(); return r; }
int main(void) { CHECK(go() == 0); return 0; }
