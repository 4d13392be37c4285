// Leaves, which have no frame: called, jumped to, jumped to through a pointer, interrupted at their first
// instruction and after it; and one that returns its result in the carry flag.
//# others: allowed
//# arc: main -> calls 1000
//# arc: main -> jumps 1000
//# arc: main -> points 2000
//# arc: calls -> leaf 1000
//# arc: jumps -> leaf 1000
//# arc: points -> leaf 1000
//# arc: points -> other 1000
//# entry-arc: main -> leaf 2000
//# entry-arc: calls -> leaf 1000
//# entry-arc: main -> other 1000
//# arc: main -> at_first 50
//# arc: main -> later 50
//# arc: at_first -> handler 50
//# arc: later -> handler 50
//# entry-arc: _start -> handler 100
//# arc: handler -> seen 100
//# arc: main -> odd 100
//# callgrind: no, it starts a call stack of its own for a signal
#define _GNU_SOURCE
#include "test.h"
#include <signal.h>
#include <ucontext.h>
static volatile long hits;
OPAQUE long leaf(long x) { BARRIER(); return x + 3; }
OPAQUE long other(long x) { BARRIER(); return x ^ 5; }
OPAQUE long calls(long x) { long r = leaf(x); BARRIER(); return r + 1; }
__asm__(".text\n.globl jumps, points, at_first, odd\n.type jumps, @function\n.type points, @function\n"
        ".type at_first, @function\n.type odd, @function\n"
        "jumps: mov %rdi, %rax\n xor %edx, %edx\n mov %rax, %rdi\n jmp leaf\n.size jumps, . - jumps\n.p2align 4\n"
        "points: mov %rdi, %rax\n xor %edx, %edx\n jmp *%rsi\n.size points, . - points\n.p2align 4\n"
        "at_first: ud2\n lea 1(%rdi), %rax\n nopl (%rax)\n ret\n.size at_first, . - at_first\n.p2align 4\n"
        "odd: mov %rdi, %rax\n nopl (%rax)\n shr $1, %rdi\n ret\n.size odd, . - odd\n.p2align 4\n");
long jumps(long x), points(long x, long (*to)(long)), at_first(long x);
OPAQUE long later(long x) {
    long r = x * 7;
    __asm__ volatile("nop\n nop\n nop\n nop\n nop\n nop\n ud2" : "+r"(r));
    return r;
}
OPAQUE void seen(void) { hits++; BARRIER(); }
OPAQUE void handler(int s, siginfo_t *info, void *context) {
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
    seen();
    BARRIER();
}
int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGILL, &action, 0);
    long r = 0, odds = 0;
    for (long i = 0; i < 1000; i++) r += calls(i) + jumps(i) + points(i, leaf) + points(i, other);
    for (long i = 0; i < 50; i++) r += at_first(i) + later(i);
    for (long i = 0; i < 100; i++) {
        unsigned char carry;
        long value = i;
        __asm__("sub $128, %%rsp\n call odd\n setc %1\n lea 128(%%rsp), %%rsp" : "+D"(value), "=q"(carry) : : "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "cc", "memory");
        odds += carry;
    }
    CHECK(hits == 100 && odds == 50 && r > 0);
    return 0;
}
