// The hooks of `gcc -finstrument-functions`, as somebody writes them who wants the time in each function: a shadow stack for
// each thread, rdtsc at both ends of a call, and a table of functions with calls and self times. It knows no callers, no
// recursion, no minimum and no distribution, takes out no overhead, and prints nothing unless INSTRUMENT is set.
#include <stdio.h>
#include <stdlib.h>
#include <x86intrin.h>

#define HOOK __attribute__((no_instrument_function))
#define DEPTH 65536
#define TABLE 65536

struct frame {
    void *function;
    unsigned long start, children;
};
struct entry {
    void *function;
    unsigned long calls, own;
};

static __thread struct frame stack[DEPTH];
static __thread unsigned depth;
static __thread struct entry table[TABLE];

HOOK void __cyg_profile_func_enter(void *function, void *site) {
    (void)site;
    if (depth >= DEPTH) abort();
    struct frame *frame = &stack[depth++];
    frame->function = function;
    frame->children = 0;
    frame->start = __rdtsc();
}

HOOK void __cyg_profile_func_exit(void *function, void *site) {
    (void)site;
    unsigned long now = __rdtsc();
    // A longjmp leaves frames of functions that do not return.
    while (depth > 0 && stack[depth - 1].function != function) depth--;
    if (depth == 0) return;
    struct frame *frame = &stack[--depth];
    unsigned long lasted = now - frame->start;
    unsigned long at = ((unsigned long)function >> 4) * 0x9e3779b1u % TABLE;
    while (table[at].function != function && table[at].function) at = (at + 1) % TABLE;
    table[at].function = function;
    table[at].calls++;
    table[at].own += lasted - frame->children;
    if (depth > 0) stack[depth - 1].children += lasted;
}

HOOK __attribute__((destructor)) static void print(void) {
    if (!getenv("INSTRUMENT")) return;
    for (unsigned i = 0; i < TABLE; i++) {
        if (table[i].function) fprintf(stderr, "%p %lu %lu\n", table[i].function, table[i].calls, table[i].own);
    }
}
