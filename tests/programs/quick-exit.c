// _exit runs no handlers; the profile is written nevertheless.
//# arc: main -> f 1000
//# exit: 5
#include "test.h"
#include <unistd.h>
OPAQUE void f(void) { BARRIER(); }
int main(void) { for (int i = 0; i < 1000; i++) f(); _exit(5); }
