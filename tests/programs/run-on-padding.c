// Control runs on from one function into the next through padding that belongs to neither. The padding may not be used for
// anything else: for the jump of a tiny function nearby, for a jump over the function's own end, or to slide through.
//# arc: main -> first 20
//# arc: main -> second 5
//# arc: main -> tiny 30
//# arc: main -> room 7
//# arc: main -> brief 20
//# arc: main -> behind_brief 5
#include "test.h"
// Nothing that could be padding, and far enough for no short jump to lead across.
#define DISTANCE() __asm__(".text\n.fill 160, 1, 0xf4\n")
#define PADDING(bytes) __asm__(".text\n.fill " #bytes ", 1, 0x90\n")

DISTANCE();
ASM_FUNCTION(first, "push %rbx\n mov %edi, %ebx\n lea 1(%rbx), %edi\n pop %rbx");
PADDING(7);
ASM_FUNCTION(second, "lea 1(%rdi), %eax\n ret");
ASM_FUNCTION(tiny, "mov %edi, %eax\n ret");
ASM_FUNCTION(room, "lea 2(%rdi), %eax\n nop\n nop\n ret");

DISTANCE();
ASM_FUNCTION(brief, "lea 1(%rdi), %edi");
PADDING(9);
ASM_FUNCTION(behind_brief, "push %rbx\n mov %edi, %ebx\n lea 1(%rbx), %eax\n pop %rbx\n ret");

DISTANCE();

int first(int), second(int), tiny(int), room(int), brief(int), behind_brief(int);
int (*volatile by_pointer[])(int) = {tiny, brief, first};
int main(void) {
    for (int i = 0; i < 30; i++) CHECK(by_pointer[0](i) == i);
    for (int i = 0; i < 20; i++) CHECK(by_pointer[1](i) == i + 2);
    for (int i = 0; i < 20; i++) CHECK(by_pointer[2](i) == i + 2);
    for (int i = 0; i < 5; i++) CHECK(second(i) == i + 1 && behind_brief(i) == i + 1);
    for (int i = 0; i < 7; i++) CHECK(room(i) == i + 2);
    return 0;
}
