// The same hooks in a library, which knows the program only by its name.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
static long entered, left, mixed;
static long known(void *address) {
    Dl_info info;
    return dladdr(address, &info) && info.dli_fname ? (char *)address - (char *)info.dli_fbase : -1;
}
void __cyg_profile_func_enter(void *function, void *site) {
    entered++;
    mixed = mixed * 31 + known(function) + 7 * known(site);
}
void __cyg_profile_func_exit(void *function, void *site) { left++; }
__attribute__((destructor)) static void say(void) { printf("%ld in, %ld out, %ld\n", entered, left, mixed); }
