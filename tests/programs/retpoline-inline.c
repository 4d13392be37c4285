//# flags: -mindirect-branch=thunk-inline -fcf-protection=none
//# only: gcc
#include "retpoline.h"
