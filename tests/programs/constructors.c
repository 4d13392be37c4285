// Functions that run before main and after it.
//# arc: _start -> before 1
//# arc: _start -> before_too 1
//# arc: _start -> after 1
//# arc: before -> leaf 5
//# arc: after -> leaf 5
//# arc: main -> leaf 1
#include "test.h"
int calls;
OPAQUE void leaf(void) { calls++; }
__attribute__((constructor)) OPAQUE void before(void) { for (int i = 0; i < 5; i++) leaf(); BARRIER(); }
__attribute__((constructor(200))) OPAQUE void before_too(void) { calls += 0; }
__attribute__((destructor)) OPAQUE void after(void) { for (int i = 0; i < 5; i++) leaf(); BARRIER(); CHECK(calls == 11); }
int main(void) { leaf(); CHECK(calls == 6); return 0; }
