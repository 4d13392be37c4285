// r10 and r11, kept through a call by code that no symbol describes.
//# hooks: both
//# others: allowed
//# callgrind: no, it has no function for that code
//# arc: main -> sees 1000
#include "test.h"
__attribute__((used)) int counter;
ASM_FUNCTION(still, "incl counter(%rip)\n ret");
ASM_FUNCTION(quiet, "incl counter(%rip)\n call still\n ret");
__asm__(".text\n .p2align 4\n unseen: mov $0x1111, %r10d\n mov $0x2222, %r11d\n call quiet\n lea (%r10,%r11), %rax\n ret");
ASM_FUNCTION(sees, "jmp unseen");
long sees(void);

int main(void) {
    for (int i = 0; i < 1000; i++) {
        CHECK(sees() == 0x3333);
    }
    CHECK(counter == 2000);
    return 0;
}
