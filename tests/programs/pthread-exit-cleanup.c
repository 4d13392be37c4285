// pthread_exit with clean-up handlers.
#include "pthread-exit.h"
