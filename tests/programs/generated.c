// Code that is made at run time calls back and then looks up its own return address, as a garbage collector does.
//# flags: -fno-omit-frame-pointer
//# arc: main -> inner 10
//# entry-arc: _start -> inner 10
//# arc: inner -> look 10
//# callgrind: no (it has no name for the caller)
#include "test.h"
#include <string.h>
#include <sys/mman.h>
static char *code;
OPAQUE int look(void **frame) {
    char *to = frame[1];
    BARRIER();
    return to > code && to < code + 64;
}
OPAQUE int inner(void) {
    int found = look(__builtin_frame_address(0));
    BARRIER();
    return found;
}
int main(void) {
    // sub rsp, 8; call rdi; add rsp, 8; ret
    static const unsigned char bytes[] = {0x48, 0x83, 0xec, 8, 0xff, 0xd7, 0x48, 0x83, 0xc4, 8, 0xc3};
    code = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(code, bytes, sizeof bytes);
    CHECK(mprotect(code, 4096, PROT_READ | PROT_EXEC) == 0);
    int (*call)(int (*)(void)) = (void *)code;
    int found = 0;
    for (int i = 0; i < 10; i++) found += call(inner);
    CHECK(found == 10);
    return 0;
}
