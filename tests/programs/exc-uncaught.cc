// An exception that is not caught.
//# exit: 134
//# arc: main -> outer 1
//# arc: outer -> thrower 1
//# callgrind: no, it prints of the signal and ends otherwise
#include "test.h"
extern "C" {
OPAQUE void thrower() { throw 1; }
OPAQUE void outer() { thrower(); BARRIER(); }
}
int main() { outer(); return 0; }
