// Registers that a caller keeps across nested calls and jumps that preserve them, that are inputs of the function to
// which a function jumps, or that a cold part reads; and rax, which is kept while r10 and r11 are not used.
//# arc: main -> keeper 1000
//# arc: keeper -> outer 1000
//# arc: outer -> inner 1000
//# arc: outer -> away 1000
//# entry-arc: keeper -> away 1000
//# arc: main -> chain 1000
//# arc: chain -> passes 1000
//# arc: passes -> takes 1000
//# arc: chain -> jumps 1000
//# arc: jumps -> takes 1000
//# entry-arc: chain -> takes 2000
//# arc: main -> warm 1000
//# arc: warm -> quiet 1000
//# arc: main -> holder 1000
//# arc: holder -> still 1000
//# arc: holder -> through 1000
//# arc: through -> still 1000
#include "test.h"
__attribute__((used)) int counter;
ASM_FUNCTION(inner, "incl counter(%rip)\n ret");
ASM_FUNCTION(away, "incl counter(%rip)\n ret");
ASM_FUNCTION(outer, "incl counter(%rip)\n call inner\n jmp away");
ASM_FUNCTION(keeper,
    "mov $0x1111, %r10\n mov $0x2222, %r11\n call outer\n xor %eax, %eax\n"
    "cmp $0x1111, %r10\n jne 1f\n cmp $0x2222, %r11\n jne 1f\n inc %eax\n 1: ret");
ASM_FUNCTION(takes, "incl counter(%rip)\n mov %r10, %rax\n ret");
ASM_FUNCTION(passes, "incl counter(%rip)\n jmp takes");
ASM_FUNCTION(jumps, "incl counter(%rip)\n jmp *%rdi");
ASM_FUNCTION(chain,
    "push %rbx\n mov $0x70, %r10d\n call passes\n mov %rax, %rbx\n mov $0x7, %r10d\n lea takes(%rip), %rdi\n"
    "call jumps\n add %rbx, %rax\n pop %rbx\n ret");
ASM_FUNCTION(quiet, "incl counter(%rip)\n ret");
ASM_FUNCTION(warm.cold, "mov %r11, %rax\n jmp warm_back");
ASM_FUNCTION(warm, "mov $0x33, %r11d\n call quiet\n jmp warm.cold\n warm_back: add $1, %rax\n ret");
ASM_FUNCTION(still, "incl counter(%rip)\n ret");
ASM_FUNCTION(through, "incl counter(%rip)\n call still\n ret");
ASM_FUNCTION(holder,
    "mov $0x4444, %eax\n call still\n call through\n cmp $0x4444, %eax\n sete %al\n movzbl %al, %eax\n ret");
int keeper(void), chain(void), warm(void), holder(void);
int main(void) {
    for (int i = 0; i < 1000; i++) {
        CHECK(keeper());
        CHECK(chain() == 0x77);
        CHECK(warm() == 0x34);
        CHECK(holder());
    }
    CHECK(counter == 11000);
    return 0;
}
