// Loops whose instructions all take equally long, each waiting for the one before it: shares of time are shares of
// instructions.
#define NOINLINE __attribute__((noipa, noinline))

// 100 dependent additions, of which each takes a cycle, and two instructions for the loop that take none.
#define WORK(rounds) do { \
        long i_ = (rounds), sum_ = 0; \
        __asm__ volatile("1: .rept 100; add %1, %0; .endr; dec %1; jnz 1b" : "+r"(sum_), "+r"(i_)); \
    } while (0)

static NOINLINE void leaf(long rounds) { WORK(rounds); }

static NOINLINE void easy(void) {
    WORK(10);
    leaf(20);
}

static NOINLINE void hard(void) {
    WORK(20);
    for (int i = 0; i < 10; i++) leaf(400);
}

static NOINLINE void recursive(int depth) {
    WORK(200);
    if (depth) recursive(depth - 1);
    WORK(100);
}

static NOINLINE void b(int n);

static NOINLINE void a(int n) {
    WORK(300);
    if (n) b(n - 1);
    __asm__ volatile("");
}

static NOINLINE void b(int n) {
    WORK(500);
    if (n) a(n - 1);
    __asm__ volatile("");
}

int main(void) {
    for (int i = 0; i < 100; i++) {
        easy();
        hard();
        recursive(4);
        a(6);
    }
    return 0;
}
