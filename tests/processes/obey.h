// Reads commands from standard input: a number on a line says how often to call step().
#pragma once
#include <stdio.h>
#include <stdlib.h>
// Inlined, so that the calls are main's.
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
