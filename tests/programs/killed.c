// A program that kills itself with SIGKILL, which no handler can catch.
//# arc: main -> f 1000
//# exit: 137
//# callgrind: no, it is killed too
#include "test.h"
#include <signal.h>
#include <unistd.h>
OPAQUE void f(void) { BARRIER(); }
int main(void) { for (int i = 0; i < 1000; i++) f(); kill(getpid(), SIGKILL); pause(); return 0; }
