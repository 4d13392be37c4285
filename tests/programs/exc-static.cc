// The unwinder and the C++ library are part of the program.
//# not: static-pie
//# flags: -static-libgcc -static-libstdc++
#include "exc-static.h"
