// Code that is not hooked, with the requested amount of stack.
#include <alloca.h>
#include <stddef.h>

typedef void Function(void *context, int depth);

// Calls a function back, `times` times, with `size` bytes of stack in between.
extern "C" void call_back(size_t size, int times, Function *function, void *context, int depth) {
    volatile char *room = (volatile char *)alloca(size + 16);
    room[0] = room[size] = 1;
    for (int i = 0; i < times; i++) function(context, depth);
    room[0] = 2;
}
