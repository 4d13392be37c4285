// pthread-exit-cleanup.c compiled with -fexceptions: clean-ups are landing pads, called by their own frames.
//# not: musl
//# flags: -fexceptions
//# not: O0
#include "pthread-exit.h"
