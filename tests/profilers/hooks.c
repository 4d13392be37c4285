// Hooks that a program defines itself for -finstrument-functions: they count, and they know the call sites.
#include <stdio.h>
#define OWN __attribute__((no_instrument_function))
static long entered, left, mixed;
extern char __executable_start, etext;
OWN static void mix(char *address) {
    // A call from the program's own code, or from far away.
    if (address >= &__executable_start && address < &etext) mixed = mixed * 31 + (address - &__executable_start);
}
OWN void __cyg_profile_func_enter(void *function, void *site) {
    entered++;
    mix(function);
    mix(site);
}
OWN void __cyg_profile_func_exit(void *function, void *site) {
    left++;
    mix(site);
}
OWN __attribute__((destructor)) static void say(void) { printf("%ld in, %ld out, %ld\n", entered, left, mixed); }
