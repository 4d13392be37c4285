// A program with its own malloc, which the library calls, too, before main and after it; and alloca.
//# not: static static-pie
//# flags: -fno-builtin
//# others: allowed
//# arc: main -> room 100
//# arc: room -> fill 100
//# arc: main -> malloc 100
//# arc: main -> duplicate 100
//# arc: duplicate -> malloc 100
//# entry-arc: main -> malloc 100
//# entry-arc: _start -> malloc 100
//# arc: main -> free 200
//# arc: malloc -> bump 200
//# stdout: ok
#include "test.h"
#include <alloca.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>
static char heap[1 << 20] __attribute__((aligned(64)));
static size_t used;
OPAQUE void *bump(size_t n) { void *r = heap + used; used += (n + 79) & -64; return r; }
OPAQUE void *malloc(size_t n) { void *r = bump(n); BARRIER(); return r; }
OPAQUE void free(void *p) { BARRIER(); }
void *calloc(size_t n, size_t m) { return memset(malloc(n * m), 0, n * m); }
void *realloc(void *p, size_t n) { void *r = malloc(n); if (p) memcpy(r, p, n); return r; }
OPAQUE void fill(char *p, int n) { memset(p, 1, n); BARRIER(); }
OPAQUE int room(int n) { char *p = alloca(n); fill(p, n); return p[n / 2]; }
OPAQUE char *duplicate(const char *s) { char *r = strdup(s); BARRIER(); return r; }
int main(void) {
    for (int i = 0; i < 100; i++) {
        CHECK(room(16 + 8 * i) == 1);
        void *volatile p = malloc(100);
        free(p);
        char *volatile q = duplicate("hello");
        CHECK(!strcmp(q, "hello"));
        free(q);
    }
    write(1, "ok\n", 3);
    return 0;
}
