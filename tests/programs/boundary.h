// Callbacks after frames have been left, for C and C++: see the programs that include this.
//
// `run_across_boundary(thread)` runs a thread on a stack that spans a multiple of 64 MiB, where two shadows meet, and sets
// `boundary` to that multiple.
#include "test.h"
#include <alloca.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
// The compiler keeps all of an array whose address it has given away.
#define USED(array) __asm__ volatile("" ::"r"(array) : "memory")
typedef int Compare(const void *, const void *);
static void *(*volatile search)(const void *, const void *, size_t, size_t, Compare *) = bsearch;
#ifdef __cplusplus
extern "C" {
#endif
OPAQUE void nothing(void) { BARRIER(); }
OPAQUE int compare(const void *a, const void *b) { nothing(); BARRIER(); return *(int *)a - *(int *)b; }
#ifdef __cplusplus
}
#endif
static uintptr_t boundary;
static inline __attribute__((always_inline)) void run_across_boundary(void *(*thread)(void *)) {
    const uintptr_t region = (uintptr_t)64 << 20, room = (uintptr_t)1 << 20;
    char *space = (char *)mmap(0, 3 * region, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(space != MAP_FAILED);
    boundary = ((uintptr_t)space / region + 2) * region;
    char *stack = (char *)boundary - room;
    CHECK(!mprotect(stack, 2 * room, PROT_READ | PROT_WRITE));
    pthread_attr_t attributes;
    pthread_t made;
    CHECK(!pthread_attr_init(&attributes));
    CHECK(!pthread_attr_setstack(&attributes, stack, 2 * room));
    CHECK(!pthread_create(&made, &attributes, thread, 0));
    CHECK(!pthread_join(made, 0));
}
