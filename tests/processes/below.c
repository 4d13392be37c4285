// A program to attach to that has memory where the arena would be, right below its own.
#define _GNU_SOURCE
#include <sys/mman.h>
#include "obey.h"
static volatile int sink;
__attribute__((noinline, noclone)) void step(void) { sink++; }
extern char __executable_start;
int main(void) {
    const unsigned long len = 64UL << 20, page = 4096;
    char *from = &__executable_start - len;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    if (mmap(from, len, PROT_READ | PROT_WRITE, flags, -1, 0) != from) return 9;
    for (unsigned long at = 0; at < len; at += page) from[at] = at / page;
    OBEY();
    int damaged = 0;
    for (unsigned long at = 0; at < len; at += page) damaged += from[at] != (char)(at / page);
    printf("%d damaged\n", damaged);
    return 4;
}
