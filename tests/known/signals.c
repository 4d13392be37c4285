// Signal handlers: on the stack that they interrupt, on an alternate one, and jumping out of both. The time in a handler is
// part of the inclusive time of what it interrupts, and not of its own.
#include "known.h"
#include <setjmp.h>
#include <signal.h>

static sigjmp_buf back;
static const char *path;
// The path of the function that has raised the present signal. What the C library and the kernel take until the handler runs, and
// from its end until raise() returns, is that function's time.
static const char *raiser;
// Volatile, because the compiler does not expect handlers to change it within raise().
static volatile uint64_t left;

INLINE void leave(void) { left = known_begin(); }

INLINE void arrive(void) {
    if (left) known_add(raiser, known_end() - left);
    left = 0;
}

static NOINLINE void handled(uint64_t ticks) {
    char longer[120];
    uint64_t start = known_begin();
    snprintf(longer, sizeof longer, "%s;handled", path);
    spin_only(ticks);
    known_add(longer, known_end() - start);
}

static NOINLINE void on_usr1(int signal) {
    (void)signal;
    arrive();
    spin(2 * SHORT, path);
    handled(SHORT);
    leave();
}

static NOINLINE void on_usr2(int signal) {
    on_usr1(signal);
    siglongjmp(back, 1);
}

static NOINLINE void interrupted(int signal, const char *own, const char *handlers) {
    (path = handlers, raiser = own);
    spin(SHORT, own);
    leave();
    raise(signal);
    arrive();
    spin(SHORT, own);
}

static NOINLINE void plain(void) { interrupted(SIGUSR1, "main;plain;interrupted", "main;plain;interrupted;on_usr1"); }

static NOINLINE void jumping(void) {
    if (!sigsetjmp(back, 1)) {
        (path = "main;jumping;on_usr2;on_usr1", raiser = "main;jumping");
        spin(SHORT, "main;jumping");
        leave();
        raise(SIGUSR2);
    }
    arrive();
    spin(3 * SHORT, "main;jumping");
}

// Nested: a handler is interrupted by another one.
static NOINLINE void on_hup(int signal) {
    (void)signal;
    arrive();
    spin(SHORT, "main;nested;on_hup");
    (path = "main;nested;on_hup;on_usr1", raiser = "main;nested;on_hup");
    leave();
    raise(SIGUSR1);
    arrive();
    spin(SHORT, "main;nested;on_hup");
    raiser = "main;nested";
    leave();
}

static NOINLINE void nested(void) {
    raiser = "main;nested";
    spin(SHORT, raiser);
    leave();
    raise(SIGHUP);
    arrive();
    spin(SHORT, "main;nested");
}

static void handle(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(signal, &action, 0);
}

int main(int argc, char **argv) {
    (void)argv;
    int flags = 0;
    if (argc > 1) {
        stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
        sigaltstack(&stack, 0);
        flags = SA_ONSTACK;
    }
    handle(SIGUSR1, on_usr1, flags);
    handle(SIGUSR2, on_usr2, flags);
    handle(SIGHUP, on_hup, flags);
    for (int i = 0; i < 40; i++) plain(), jumping(), nested();
    spin(1000 * SHORT, "main");
    counts("plain", 40, 40, 0);
    counts("interrupted", 40, 40, 0);
    counts("jumping", 40, 40, 0);
    counts("nested", 40, 40, 0);
    counts("on_usr1", 120, 120, 0);
    counts("on_usr2", 40, 40, 0);
    counts("on_hup", 40, 40, 0);
    counts("handled", 120, 120, 0);
    print_spent();
    return 0;
}
