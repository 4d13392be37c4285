// Tiny functions reached by pointer, compared by address, and by a short jump from a neighbour.
//# arc: main -> a 100
//# arc: main -> b 100
//# arc: main -> c 100
//# arc: c -> a 100
//# entry-arc: main -> a 200
// In a program of musl's, too little code is near that could be overwritten: this is a listed refusal.
//# not: musl-dynamic
#include "test.h"
ASM_FUNCTION(a, "mov %edi, %eax\n ret");
ASM_FUNCTION(b, "xor %eax, %eax\n ret");
ASM_FUNCTION(c, ".byte 0xeb, a - . - 1");
int a(int), b(int), c(int);
int (*volatile pa)(int) = a, (*volatile pb)(int) = b, (*volatile pc)(int) = c;
int main(void) {
    CHECK(pa != pb && pb != pc && (char *)pb - (char *)pa == 3 && (char *)pc - (char *)pb == 3);
    for (int i = 0; i < 100; i++) CHECK(pa(i) == i && pb(i) == 0 && pc(i) == i);
    return 0;
}
