// Functions that are switched off and on while four threads call them. Commands on standard input: `run N` has every thread
// do N rounds and prints how often each function was called up to now, as the callers have counted it; `spin` has the threads
// do rounds until `stop`, which prints the same; `load FILE` loads a library with the function `plugged`, which is called in
// each round from then on; `fork N` does N rounds in a child, which prints its own counts. The last line is a checksum.
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define NOINLINE __attribute__((noinline, noclone))

enum { LEAF, SMALL, EMPTY, TAIL, HOP, RECURSIVE, SORTS, COMPARE, FIRST, ZEROES, PLUGGED, KINDS };
static const char *const names[KINDS] = {"leaf",  "small",   "empty", "tail",   "hop",    "recursive",
                                         "sorts", "compare", "first", "zeroes", "plugged"};
static atomic_ulong counts[KINDS];
static _Thread_local unsigned long own[KINDS];

unsigned NOINLINE leaf(unsigned x) { return x * 2654435761u + 12345; }
// Two or three bytes, without room for a jump.
unsigned NOINLINE small(void) { return 0; }
void NOINLINE empty(void) {}
void (*volatile through)(void) = empty;
// Jumps to other functions.
unsigned NOINLINE tail(unsigned x) { return leaf(x + 1); }
unsigned NOINLINE hop(unsigned x) {
    if (x & 1) x ^= 0x55;
    return tail(x ^ 3);
}
unsigned NOINLINE recursive(unsigned n) {
    if (n == 0) return 1;
    unsigned rest = recursive(n - 1);
    // Otherwise compilers make a loop of it.
    __asm__ volatile("" : "+r"(rest));
    return n + rest * 3;
}
// Calls another function at once.
unsigned NOINLINE first(void) { return small() + 7; }
// A loop that leads back to the first instruction.
unsigned NOINLINE zeroes(unsigned long n) {
    unsigned found = 0;
    do {
        found += !(n & 1);
        n >>= 1;
    } while (n != 0);
    return found;
}
// Called by the C library.
int NOINLINE compare(const void *a, const void *b) {
    own[COMPARE]++;
    return *(const int *)a < *(const int *)b ? -1 : *(const int *)a > *(const int *)b;
}
int NOINLINE sorts(unsigned seed) {
    int list[12];
    for (int i = 0; i < 12; i++) list[i] = (int)((seed = leaf(seed)) >> 8);
    own[LEAF] += 12;
    qsort(list, 12, sizeof list[0], compare);
    return list[5];
}
static unsigned (*_Atomic plugged)(unsigned);

static unsigned NOINLINE round_of(unsigned x) {
    unsigned sum = leaf(x) + small();
    own[LEAF]++, own[SMALL]++;
    through();
    own[EMPTY]++;
    sum += tail(x);
    own[TAIL]++, own[LEAF]++;
    sum ^= hop(x);
    own[HOP]++, own[TAIL]++, own[LEAF]++;
    sum += recursive(x % 8);
    own[RECURSIVE] += x % 8 + 1;
    sum += first();
    own[FIRST]++, own[SMALL]++;
    sum += zeroes(x);
    own[ZEROES]++;
    if (x % 16 == 0) {
        sum += (unsigned)sorts(x);
        own[SORTS]++;
    }
    if (plugged) {
        sum += plugged(x);
        own[PLUGGED]++;
    }
    return sum;
}

static atomic_int spinning;
static atomic_uint checksum;
static unsigned rounds;

static void *thread(void *argument) {
    unsigned sum = 0, x = 0;
    memset(own, 0, sizeof own);
    if (rounds == 0)
        while (spinning) {
            // Only whole turns of a thousand, whose sum is known.
            unsigned turn = 0;
            for (x = 0; x < 1000; x++) turn += round_of(x);
            if (sum != 0 && turn != sum) printf("a turn was %u and is %u\n", sum, turn);
            sum = turn;
        }
    else
        for (; x < rounds; x++) sum += round_of(x);
    for (int kind = 0; kind < KINDS; kind++) counts[kind] += own[kind];
    checksum += sum;
    return argument;
}

static pthread_t threads[THREADS];
static void begin(void) {
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, thread, NULL) != 0) abort();
}
static void end(void) {
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int kind = 0; kind < KINDS; kind++) printf("%s %lu ", names[kind], (unsigned long)counts[kind]);
    puts("");
}

int main(void) {
    char line[4096];
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "run %u", &rounds) == 1) {
            begin(), end();
        } else if (strcmp(line, "spin") == 0) {
            rounds = 0, spinning = 1;
            begin();
            puts("spins");
        } else if (strcmp(line, "stop") == 0) {
            spinning = 0;
            end();
        } else if (strncmp(line, "load ", 5) == 0) {
            void *library = dlopen(line + 5, RTLD_NOW);
            plugged = library == NULL ? NULL : (unsigned (*)(unsigned))dlsym(library, "plugged");
            puts(plugged ? "loaded" : "not loaded");
        } else if (sscanf(line, "fork %u", &rounds) == 1) {
            pid_t child = fork();
            if (child == 0) {
                printf("child %d\n", (int)getpid());
                // The child waits for its own word.
                if (fgets(line, sizeof line, stdin) != NULL) begin(), end();
                _exit(0);
            }
            waitpid(child, NULL, 0);
        }
    }
    printf("checksum %u\n", checksum);
    return 0;
}
