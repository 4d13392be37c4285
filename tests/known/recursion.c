// Recursive functions: directly, and in circles of two and three functions. Of the inclusive time, only the outermost call counts.
#include "known.h"

static NOINLINE void direct(int depth, const char *path) {
    char deeper[120];
    uint64_t start = known_begin();
    snprintf(deeper, sizeof deeper, "%s;direct", path);
    known_add(path, known_end() - start);
    spin(SHORT, path);
    if (depth > 1) direct(depth - 1, deeper);
    // Time after the inner call, too.
    spin(SHORT / 2, path);
}

static NOINLINE void ping(int depth);

static NOINLINE void pong(int depth) {
    static const char *const paths[] = {"main;ping;pong", "main;ping;pong;ping;pong", "main;ping;pong;ping;pong;ping;pong"};
    spin(SHORT, paths[depth]);
    if (depth < 2) ping(depth + 1);
}

static NOINLINE void ping(int depth) {
    static const char *const paths[] = {"main;ping", "main;ping;pong;ping", "main;ping;pong;ping;pong;ping"};
    spin(2 * SHORT, paths[depth]);
    pong(depth);
    spin(SHORT, paths[depth]);
}

static NOINLINE void one(int round);

static NOINLINE void three(int round) {
    spin(SHORT, round ? "main;one;two;three;one;two;three" : "main;one;two;three");
    if (!round) one(1);
}

static NOINLINE void two(int round) {
    spin(2 * SHORT, round ? "main;one;two;three;one;two" : "main;one;two");
    three(round);
}

static NOINLINE void one(int round) {
    spin(3 * SHORT, round ? "main;one;two;three;one" : "main;one");
    two(round);
}

int main(void) {
    for (int i = 0; i < 50; i++) direct(8, "main;direct");
    for (int i = 0; i < 50; i++) ping(0);
    for (int i = 0; i < 50; i++) one(0);
    counts("direct", 400, 50, 0);
    counts("ping", 150, 50, 0);
    counts("pong", 150, 50, 0);
    counts("one", 100, 50, 0);
    counts("two", 100, 50, 0);
    counts("three", 100, 50, 0);
    print_spent();
    return 0;
}
