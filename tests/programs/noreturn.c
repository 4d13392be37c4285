// A call that does not return is the last instruction of its function: its return address belongs to the
// next function.
//# arc: main -> give_up 1
//# arc: give_up -> die 1
//# exit: 3
#include "test.h"
#include <stdlib.h>
__attribute__((noreturn)) void die(int);
ASM_FUNCTION(give_up, "sub $8, %rsp\n .cfi_adjust_cfa_offset 8\n call die");
ASM_FUNCTION(next, "ret");
OPAQUE void die(int status) { exit(status); }
void give_up(int);
int main(void) { give_up(3); return 0; }
