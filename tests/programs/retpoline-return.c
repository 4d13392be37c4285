//# flags: -mindirect-branch=thunk -mfunction-return=thunk -fcf-protection=none
//# only: gcc
#include "retpoline.h"
