// The unwinder is part of the program, and the C++ library brings another one.
//# flags: -static-libgcc
//# not: O2-lto
#include "exc-static.h"
