//# flags: -mindirect-branch=thunk -mfunction-return=thunk -fcf-protection=none
//# only: gcc
//# callgrind: no, it takes the call of a retpoline for a call of the function, and its return for one
#include "retpoline.h"
