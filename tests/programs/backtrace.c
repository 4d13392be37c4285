// backtrace(): as deep as without hooks, with the same names; in a callback, a handler, a thread, deep down.
//# not: musl
//# flags: -rdynamic -fexceptions
//# others: allowed
//# arc: main -> sort 1
//# arc: sort -> compare 1
//# entry-arc: _start -> compare 1
//# arc: compare -> show 1
//# arc: main -> down 1
//# arc: down -> down 100
//# arc: down -> show 1
//# arc: thread -> show 1
//# arc: tail -> show 1
//# arc: handler -> show 1
//# callgrind: no, it starts a call stack of its own for a signal
//# stdout: show handler raised main
//# stdout: show compare sort main
//# stdout: show down down down down down down down down down down down down down down down
//# stdout: show thread
//# stdout: show tail main
#include "test.h"
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// Names of the program's functions to standard output, the depth and the rest to standard error, which must be
// the same as without hooks, too.
OPAQUE void show(int most) {
    void *frames[500];
    int n = backtrace(frames, most);
    char **names = backtrace_symbols(frames, n);
    fprintf(stderr, "%d:", n);
    const char *space = "";
    for (int i = 0; i < n; i++) {
        const char *open = strchr(names[i], '('), *plus = open ? strpbrk(open, "+)") : 0;
        int length = plus ? plus - open - 1 : 0;
        fprintf(stderr, " %.*s", (int)strcspn(names[i], "["), names[i]);
        if (length && strncmp(open + 1, "_", 1) && !strstr(names[i], "/lib")) {
            printf("%s%.*s", space, length, open + 1);
            space = " ";
        }
    }
    fprintf(stderr, "\n");
    printf("\n");
    free(names);
}
OPAQUE int compare(const void *a, const void *b) { show(500); return *(int *)a - *(int *)b; }
OPAQUE int sort(void) { int v[2] = {2, 1}; qsort(v, 2, sizeof *v, compare); return v[0]; }
OPAQUE int down(int n) { if (n) { int r = down(n - 1); BARRIER(); return r; } show(16); BARRIER(); return 0; }
OPAQUE void handler(int s) { show(500); BARRIER(); }
OPAQUE void raised(void) { raise(SIGUSR1); BARRIER(); }
OPAQUE void *thread(void *x) { show(500); BARRIER(); return x; }
OPAQUE int tail(int n) { show(n); BARRIER(); return 0; }
int main(void) {
    pthread_t t;
    signal(SIGUSR1, handler);
    raised();
    sort();
    down(100);
    pthread_create(&t, 0, thread, 0);
    pthread_join(t, 0);
    tail(500);
    return 0;
}
