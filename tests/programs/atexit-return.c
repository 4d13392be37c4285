// Exit handlers after main has returned: no function of the program is below them.
// atexit itself is linked into the program, from the static part of libc.
//# arc: main -> atexit 3
//# arc: _start -> handler 3
//# arc: handler -> leaf 3
//# stdout: handler
//# stdout: handler
//# stdout: handler
//# not: musl-dynamic
#include "test.h"
#include <stdlib.h>
#include <stdio.h>
OPAQUE void leaf(void) { BARRIER(); }
OPAQUE void handler(void) { leaf(); puts("handler"); }
int main(void) { for (int i = 0; i < 3; i++) atexit(handler); return 0; }
