// Random trees of calls, from a seed, through functions with frames of all sizes and code that is not hooked. The
// program counts each call itself, as it makes it, and prints its arcs.
//
// Hooked code makes direct calls and tail calls; a library makes calls with any amount of stack in between.
// Frames are left by returns, longjmp and exceptions. Signal handlers run on the same stack and on one of their own,
// code that the program has made at run time calls functions, with any amount of stack in between as well;
// coroutines (ucontext) are resumed at any depth and by either of two threads. The frames of some functions grow and
// shrink between their calls.
//
// The caller of a call from the library is known where the call is made: `owner`, the newest function that keeps a
// frame. That is the function itself, except for those that call setjmp, which are hooked at entry only.
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__clang__)
#define OPAQUE extern "C" __attribute__((noinline))
#else
#define OPAQUE extern "C" __attribute__((noipa))
#endif
#define INSIDE static inline __attribute__((always_inline))
#define BARRIER() __asm__ volatile("" ::: "memory")

typedef void Function(void *context, int depth);
extern "C" void call_back(size_t size, int times, Function *function, void *context, int depth);

// The functions that can call and be called; FUNCTIONS of them are selected.
enum {
    TINY, SMALL, MIDDLE, PAGE, LARGE, HUGE_FRAME, SHRINKING, GROWING, TAIL, OTHER_TAIL, CATCHING, JUMPED, LEAF, FUNCTIONS,
    HANDLER = FUNCTIONS, COROUTINE, WORKER, MADE, MAIN, ROOT, NAMES
};
static const char *const NAME[] = {
    "tiny", "small", "middle", "page", "large", "huge_frame", "shrinking", "growing", "tail", "other_tail", "catching",
    "jumped", "leaf", "handler", "coroutine", "worker", "made", "main", "_start"
};

// The targets of jumps and exceptions that are open on the stack that runs.
enum { LEVELS = 64, COROUTINES = 6 };
struct Level { sigjmp_buf environment; };

struct Context {
    uint64_t state;
    long budget;
    unsigned long counts[NAMES][FUNCTIONS + 4];
    Level levels[LEVELS];
    int jumps;          // how many of `levels` are open
    int tries;          // how many functions that catch are on the stack
    bool narrow;        // on a stack whose extent is not known: frames are near each other
    int suspended;
};
static Context the_context;
static Context *const c = &the_context;

struct Coroutine {
    ucontext_t own, resumer;
    enum { NEW, SUSPENDED, RUNNING, DONE } state;
};
static Coroutine coroutines[COROUTINES];
static Coroutine *current;      // the one that runs

INSIDE uint32_t number(uint32_t below) {
    // xorshift64*, Vigna 2016
    c->state ^= c->state >> 12;
    c->state ^= c->state << 25;
    c->state ^= c->state >> 27;
    return (uint32_t)((c->state * 0x2545F4914F6CDD1DULL) >> 32) % below;
}

extern "C" Function tiny, small, middle, page, large, huge_frame, shrinking, growing, tail, other_tail, catching, jumped, leaf;
static Function *const FUNCTION[FUNCTIONS] = {
    tiny, small, middle, page, large, huge_frame, shrinking, growing, tail, other_tail, catching, jumped, leaf
};

INSIDE int choose() {
    for (;;) {
        int which = (int)number(FUNCTIONS);
        if (!c->narrow || (which != PAGE && which != LARGE && which != HUGE_FRAME && which != SHRINKING && which != GROWING))
            return which;
    }
}

static size_t room() {
    static const uint32_t MOST[] = {16, 64, 600, 4096, 9000, 70000};
    return number(MOST[number(c->narrow ? 3 : 6)]) & ~15u;
}

// The context is handed down through unhooked code; `me` and `owner` are constants of each function but JUMPED.
static Coroutine *resumable() {
    Coroutine *one = &coroutines[number(COROUTINES)];
    return one->state == Coroutine::NEW || one->state == Coroutine::SUSPENDED ? one : nullptr;
}

// What is open on a stack stays open there while another one runs.
struct Segment {
    int jumps, tries;
    bool narrow;
    Segment() : jumps(c->jumps), tries(c->tries), narrow(c->narrow) {}
    void begin(bool on_other_stack) { c->tries = 0; c->jumps = 0; c->narrow = on_other_stack || c->narrow; }
    void back() { c->jumps = jumps; c->tries = tries; c->narrow = narrow; }
};

// Levels are per segment: a segment's own begin at 0, so they are saved and restored around another one.
static void resume(Coroutine *one) {
    Segment here;
    Level *saved = (Level *)malloc(sizeof c->levels);
    memcpy(saved, c->levels, sizeof c->levels);
    Coroutine *before = current;
    if (one->state == Coroutine::NEW) c->counts[ROOT][COROUTINE]++;
    one->state = Coroutine::RUNNING;
    current = one;
    here.begin(true);
    swapcontext(&one->resumer, &one->own);
    current = before;
    here.back();
    memcpy(c->levels, saved, sizeof c->levels);
    free(saved);
}

static void suspend() {
    Coroutine *one = current;
    Segment here;
    Level *saved = (Level *)malloc(sizeof c->levels);
    memcpy(saved, c->levels, sizeof c->levels);
    one->state = Coroutine::SUSPENDED;
    swapcontext(&one->own, &one->resumer);
    here.back();
    memcpy(c->levels, saved, sizeof c->levels);
    free(saved);
}

INSIDE void call(int me, int depth) {
    int which = choose();
    c->counts[me][which]++;
    FUNCTION[which](c, depth - 1);
    BARRIER();
}

// Calls a function with `size` bytes of stack in between: code that is in no file, so the function gets no frame that is known.
static void (*made_code)(size_t size, Function *function, void *context, int depth);

static void make_code() {
    static const unsigned char CODE[] = {
        0x55, 0x48, 0x89, 0xe5,             // push rbp; mov rbp, rsp
        0x48, 0x29, 0xfc,                   // sub rsp, rdi
        0x48, 0x83, 0xe4, 0xf0,             // and rsp, -16
        0x48, 0x89, 0xf0,                   // mov rax, rsi
        0x48, 0x89, 0xd7, 0x89, 0xce,       // mov rdi, rdx; mov esi, ecx
        0xff, 0xd0, 0xc9, 0xc3,             // call rax; leave; ret
    };
    void *code = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) abort();
    memcpy(code, CODE, sizeof CODE);
    if (mprotect(code, 4096, PROT_READ | PROT_EXEC)) abort();
    made_code = (decltype(made_code))code;
}

extern "C" Function made;

static int in_handler;
static bool alone;      // no coroutine and no second thread, so a jump may lead from a signal stack

INSIDE void act(int me, int owner, int depth) {
    for (int actions = (int)number(4); actions > 0 && depth > 0 && c->budget > 0; actions--) {
        c->budget--;
        switch (number(14)) {
        case 0: case 1: case 2: case 3:
            call(me, depth);
            break;
        case 4: case 5: case 6: case 7: {
            int which = choose(), times = 1 + (int)number(3);
            // One after the other, because the first may throw an exception.
            for (int i = 0; i < times; i++) {
                c->counts[owner][which]++;
                call_back(room(), 1, FUNCTION[which], c, depth - 1);
                BARRIER();
            }
            break;
        }
        case 8: {
            // Handlers on their own stack do not nest there, because the stack has room for one only.
            bool other = number(2);
            if (in_handler > 1) break;

            c->counts[owner][HANDLER]++;
            raise(other ? SIGUSR2 : SIGUSR1);
            BARRIER();
            break;
        }
        case 9:
            if (c->jumps > 0) siglongjmp(c->levels[number((uint32_t)c->jumps)].environment, 1);
            break;
        case 10:
            if (c->tries > 0) throw (int)number((uint32_t)c->tries);
            break;
        case 11:
            if (!in_handler && current && number(2)) {
                suspend();
            } else if (!in_handler) {
                if (Coroutine *one = resumable()) resume(one);
            }
            BARRIER();
            break;
        case 12: case 13: {
            // No exception passes code that has no unwind information.
            Segment here;
            c->tries = 0;
            c->counts[owner][MADE]++;
            made_code(room(), made, c, depth - 1);
            here.back();
            break;
        }
        }
    }
}

#define FRAME(name, me, size)                                      \
    OPAQUE void name(void *, int depth) {                          \
        volatile char room[size];                                  \
        room[0] = 1;                                               \
        act(me, me, depth);                                        \
        room[0] = 2;                                               \
    }
FRAME(tiny, TINY, 1)
FRAME(small, SMALL, 40)
FRAME(middle, MIDDLE, 520)
FRAME(page, PAGE, 5000)
FRAME(large, LARGE, 30000)
FRAME(huge_frame, HUGE_FRAME, 150000)

OPAQUE void leaf(void *, int) { BARRIER(); }

// The frame has another size at each of its calls.
OPAQUE void shrinking(void *, int depth) {
    for (int n = 4; n > 0; n--) {
        volatile char room[n * (1 + number(9000))];
        room[0] = 1;
        act(SHRINKING, SHRINKING, depth - n);
        room[0] = 2;
    }
}

OPAQUE void growing(void *, int depth) {
    for (int n = 1; n < 4; n++) {
        volatile char *room = (volatile char *)__builtin_alloca(number(6000) + 1);
        room[0] = 1;
        act(GROWING, GROWING, depth - 1);
    }
    BARRIER();
}

OPAQUE void tail(void *, int depth) {
    act(TAIL, TAIL, depth);
    int which = choose();
    if (depth <= 0 || c->budget <= 0) which = LEAF;
    c->counts[TAIL][which]++;
    return FUNCTION[which](c, depth - 1);
}

OPAQUE void other_tail(void *context, int depth) {
    if (depth > 0 && number(2)) {
        c->counts[OTHER_TAIL][TAIL]++;
        return tail(context, depth - 1);
    }
    act(OTHER_TAIL, OTHER_TAIL, depth);
}

OPAQUE void catching(void *, int depth) {
    Segment here;
    int own = c->tries++, others = in_handler;
    try {
        act(CATCHING, CATCHING, depth);
    } catch (int level) {
        if (level != own) {
            here.back();
            throw;
        }
        in_handler = others;
    }
    here.back();
    act(CATCHING, CATCHING, depth - 1);
}

// Only the code that is made at run time calls it. Calls that the library makes for it would be charged to the caller of that code.
OPAQUE void made(void *, int depth) {
    for (int calls = (int)number(4); calls > 0 && depth > 0; calls--) call(MADE, depth);
}

// Calls setjmp, and is hooked at entry only: calls that the library makes for it are charged to its caller, which it does
// not know. So it only makes direct calls.
OPAQUE void jumped(void *, int depth) {
    if (c->jumps >= LEVELS || depth <= 0) return;
    Segment here;
    volatile int others = in_handler, left = depth;
    int own = c->jumps++;
    // The signal mask is restored, too.
    sigsetjmp(c->levels[own].environment, 1);
    c->jumps = own + 1;
    c->tries = 0;       // exceptions do not pass this frame
    c->narrow = here.narrow;
    in_handler = others;
    if (left > 0) {
        left = left - 1 - (int)number(2);
        if (left > 0) call(JUMPED, left);
    }
    here.back();
}

OPAQUE void handler(int) {
    Segment here;
    // Jumps out of a handler lead to the stack that it has interrupted, and only if nothing else is in progress.
    bool own_stack = !here.narrow && alone && number(2);
    c->tries = 0;
    if (!own_stack) c->jumps = 0;
    stack_t stack;
    sigaltstack(nullptr, &stack);
    if (stack.ss_flags & SS_ONSTACK) { c->narrow = true; c->jumps = 0; }
    Level *saved = (Level *)malloc(sizeof c->levels);
    memcpy(saved, c->levels, sizeof c->levels);
    in_handler++;
    act(HANDLER, HANDLER, 4);
    in_handler--;
    memcpy(c->levels, saved, sizeof c->levels);
    free(saved);
    here.back();
}

OPAQUE void coroutine() {
    for (int i = 0; i < 3; i++) act(COROUTINE, COROUTINE, 6);
    current->state = Coroutine::DONE;
}

static void *map(size_t size) {
    // Far from every other stack: no frame is above it. gprofinject divides the address space into parts; half of the stacks lie on both
    // sides of such a boundary, near their ends, where their frames are.
    const size_t APART = 4 << 20, PART = 64 << 20;
    const size_t room = size + PART + 2 * APART;
    char *all = (char *)mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) abort();
    static unsigned stacks;
    char *boundary = (char *)(((uintptr_t)all + APART + size) / PART * PART + PART);
    size_t above = 4096 * ((c->state >> 40) % 8);
    char *stack = (c->state >> 32) + stacks++ & 1 ? boundary + above - size : all + APART;
    if (mprotect(stack, size, PROT_READ | PROT_WRITE)) abort();
    return stack;
}

static void signal_stack() {
    stack_t stack = {};
    stack.ss_size = 1 << 20;
    stack.ss_sp = map(stack.ss_size);
    if (sigaltstack(&stack, nullptr)) abort();
}

static sem_t turn[2];

OPAQUE void *worker(void *) {
    signal_stack();
    for (int i = 0; i < 4; i++) {
        sem_wait(&turn[1]);
        act(WORKER, WORKER, 9);
        sem_post(&turn[0]);
    }
    return nullptr;
}

int main(int argc, char **argv) {
    c->state = strtoull(argc > 1 ? argv[1] : "1", nullptr, 10) * 0x9E3779B97F4A7C15ULL + 1;
    c->budget = 60 + number(800);
    make_code();
    signal_stack();
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = SA_NODEFER;
    sigaction(SIGUSR1, &action, nullptr);
    action.sa_flags = SA_NODEFER | SA_ONSTACK;
    sigaction(SIGUSR2, &action, nullptr);
    alone = number(2);
    for (auto &one : coroutines) {
        one.state = alone ? Coroutine::DONE : Coroutine::NEW;
        if (alone) continue;
        getcontext(&one.own);
        one.own.uc_stack.ss_size = 1 << 20;
        one.own.uc_stack.ss_sp = map(one.own.uc_stack.ss_size);
        one.own.uc_link = &one.resumer;
        makecontext(&one.own, coroutine, 0);
    }
    pthread_t thread;
    bool two = !alone && number(2);
    if (two) {
        sem_init(&turn[0], 0, 0);
        sem_init(&turn[1], 0, 0);
        c->counts[ROOT][WORKER]++;
        if (pthread_create(&thread, nullptr, worker, nullptr)) abort();
    }
    for (int i = 0; i < 4; i++) {
        volatile char room[1];
        room[0] = 1;
        act(MAIN, MAIN, 12);
        if (two) {
            sem_post(&turn[1]);
            sem_wait(&turn[0]);
        }
    }
    if (two) pthread_join(thread, nullptr);
    for (int from = 0; from < NAMES; from++)
        for (int to = 0; to < FUNCTIONS + 4; to++)
            if (c->counts[from][to]) printf("%s -> %s %lu\n", NAME[from], NAME[to], c->counts[from][to]);
    return 0;
}
