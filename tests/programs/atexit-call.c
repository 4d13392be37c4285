// Exit handlers while functions are active: charged to the one that called exit.
// atexit itself is linked into the program, from the static part of libc.
//# arc: main -> atexit 2
//# arc: main -> quit 1
//# arc: quit -> handler 2
//# entry-arc: _start -> handler 2
//# exit: 7
//# not: musl-dynamic
#include "test.h"
#include <stdlib.h>
OPAQUE void handler(void) { BARRIER(); }
OPAQUE void quit(int status) { exit(status); }
int main(void) { atexit(handler); atexit(handler); quit(7); return 0; }
