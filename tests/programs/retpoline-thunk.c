//# flags: -mindirect-branch=thunk -fcf-protection=none
//# only: gcc
#include "retpoline.h"
