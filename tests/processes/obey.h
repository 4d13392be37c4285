// Obeying standard input: a number on a line is how often step() is called.
#pragma once
#include <stdio.h>
#include <stdlib.h>
// In place: the calls are main's.
#define OBEY() \
    do { \
        char line[64]; \
        setlinebuf(stdout); \
        puts("ready"); \
        while (fgets(line, sizeof line, stdin)) { \
            for (int n = atoi(line); n; n--) step(); \
            puts("done"); \
        } \
    } while (0)
