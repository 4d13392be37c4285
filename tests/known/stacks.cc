// Functions that are found on the stack in many ways: each spins for a known time on a known path.
#include "known.h"
#include <alloca.h>
#include <csetjmp>
#include <csignal>
#include <pthread.h>

#define LONG (800 * SHORT)

extern "C" {

static NOINLINE void leaf(const char *path) { spin(LONG, path); }

// The frame is found by the frame pointer, because its size is known when it runs only.
static NOINLINE void sized(int size) {
    volatile char *room = (volatile char *)alloca(size);
    room[size - 1] = 1;
    leaf("main;sized;leaf");
    room[0] = 1;
}

static NOINLINE void aligned(void) {
    alignas(64) volatile char room[100];
    room[0] = 1;
    leaf("main;aligned;leaf");
    room[1] = 1;
}

static NOINLINE void recursive(int depth) {
    if (depth) recursive(depth - 1);
    else spin(LONG, "main;recursive");
    __asm__ volatile("");
}

static NOINLINE int compare(const void *a, const void *b) {
    spin(LONG / 4, "main;sorts;compare");
    return *(const int *)a - *(const int *)b;
}

static NOINLINE void sorts(void) {
    int numbers[] = {4, 3, 2, 1};
    qsort(numbers, 4, sizeof *numbers, compare);
    __asm__ volatile("");
}

static NOINLINE void handler(int) { spin(LONG, "main;raises;handler"); }

static NOINLINE void raises(void) {
    signal(SIGUSR1, handler);
    raise(SIGUSR1);
    __asm__ volatile("");
}

// The same size of the frame, and the same callee: only the call sites differ.
static NOINLINE void first_twin(void) {
    leaf("main;first_twin;leaf");
    __asm__ volatile("");
}

static NOINLINE void second_twin(void) {
    leaf("main;second_twin;leaf");
    __asm__ volatile("");
}

static NOINLINE void thrower(int depth) {
    if (!depth) throw 1;
    thrower(depth - 1);
    __asm__ volatile("");
}

// After frames with hooked exits have vanished.
static NOINLINE void catcher(void) {
    try {
        thrower(5);
    } catch (int) {
        leaf("main;catcher;leaf");
    }
}

static NOINLINE void jumper(jmp_buf &place, int depth) {
    if (!depth) longjmp(place, 1);
    jumper(place, depth - 1);
    __asm__ volatile("");
}

static NOINLINE void jumped(void) {
    jmp_buf place;
    if (!setjmp(place)) jumper(place, 5);
    leaf("main;jumped;leaf");
    __asm__ volatile("");
}

static NOINLINE void *worker(void *) {
    leaf("worker;leaf");
    __asm__ volatile("");
    return nullptr;
}
}

struct Shape {
    virtual void draw() = 0;
    virtual ~Shape() {}
};

static void (*volatile indirect)(const char *) = leaf;

struct Round : Shape {
    NOINLINE void draw() override {
        indirect("main;Round::draw;leaf");
        __asm__ volatile("");
    }
};

int main() {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, worker, nullptr)) return 1;
    for (int i = 0; i < 2; i++) {
        sized(100 + i);
        aligned();
        recursive(20);
        sorts();
        raises();
        first_twin();
        second_twin();
        catcher();
        jumped();
        Round round;
        Shape *volatile shape = &round;
        shape->draw();
    }
    pthread_join(thread, nullptr);
    print_spent();
    return 0;
}
