// pthread_exit with clean-up handlers.
//# not: musl
#include "pthread-exit.h"
