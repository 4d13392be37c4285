// An exception meets noexcept: the terminate handler runs, and the process aborts.
//# others: allowed
//# exit: 134
//# stdout: terminating
//# arc: main -> outer 1
//# arc: outer -> promise 1
//# arc: promise -> thrower 1
//# arc: thrower -> terminated 1
//# entry-arc: _start -> terminated 1
//# arc: terminated -> last 1
//# only: gcc
//# callgrind: no, it prints of the signal and ends otherwise
#include "test.h"
#include <exception>
#include <stdlib.h>
#include <unistd.h>
extern "C" {
OPAQUE void last() { write(1, "terminating\n", 12); }
OPAQUE void terminated() { last(); BARRIER(); abort(); }
OPAQUE void thrower() { throw 1; }
OPAQUE void promise() noexcept { thrower(); BARRIER(); }
OPAQUE void outer() { try { promise(); BARRIER(); } catch (...) { BARRIER(); } }
}
int main() { std::set_terminate(terminated); outer(); return 0; }
