// A program to attach to, in C, so that musl can run it. Like attached.cc it has a thread for each letter of its argument,
// reads numbers from standard input, and counts calls in the file "counters". A round that goes wrong ends it by abort().
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define COUNTED __attribute__((noinline, noclone))
#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %m\n", __LINE__, #what); abort(); } } while (0)

static struct { atomic_ulong outer, inner, thrower, rounds; } *counters;
static atomic_int stop;
static volatile int sink;
extern char **environ;

COUNTED void step(void) { sink++; }
COUNTED int inner(int x) { counters->inner++; return x + 1; }
COUNTED int outer(int x) { counters->outer++; return inner(inner(inner(x))); }
COUNTED int thrower(int x, jmp_buf base) { counters->thrower++; if (x % 3 == 0) longjmp(base, 1); return x; }
COUNTED int deep(int depth) { volatile char room[600] = {0}; return depth ? deep(depth - 1) + 1 + room[depth % 600] : outer(0); }
COUNTED static int through(int x, jmp_buf base) { return thrower(x, base) + 1; }

COUNTED static void jumps(int i) {
    jmp_buf base;
    if (setjmp(base)) CHECK(i % 3 == 0);
    else CHECK(through(i, base) == i + 1 && i % 3);
    CHECK(outer(i) == i + 3);
}

static int by_number(const void *one, const void *other) { return **(int *const *)one - **(int *const *)other; }

COUNTED static void allocations(int i) {
    int *many[20];
    for (int n = 0; n < 20; n++) {
        CHECK(many[n] = malloc(n * 700 + 8));
        *many[n] = (n * 7 + i) % 20;
    }
    qsort(many, 20, sizeof *many, by_number);
    char text[100];
    for (int n = 0; n < 20; n++) {
        snprintf(text, sizeof text, "%d %.3f", *many[n], n / 8.0);
        CHECK(*many[n] == n && atoi(text) == n);
        free(many[n]);
    }
    CHECK(outer(i) == i + 3);
}

static void *made(void *argument) { return (void *)(long)outer((long)argument); }

COUNTED static void new_thread(int i) {
    pthread_t thread;
    void *result;
    CHECK(!pthread_create(&thread, 0, made, (void *)(long)i) && !pthread_join(thread, &result));
    CHECK((long)result == i + 3);
}

COUNTED static void child(int i) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        for (int n = 0; n < 50; n++) step();
        jmp_buf base;
        if (!setjmp(base)) longjmp(base, 1);
        _exit(51);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 51);
    usleep(500);
}

COUNTED static void spawned(int i) {
    char *arguments[] = {"true", 0};
    pid_t pid;
    int status;
    CHECK(!posix_spawn(&pid, "/bin/true", 0, 0, arguments, environ));
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

COUNTED static void blocked(int i) {
    CHECK(poll(0, 0, 3) == 0);
    struct timespec time = {0, 4000000};
    CHECK(nanosleep(&time, 0) == 0);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    CHECK(sigtimedwait(&set, 0, &time) < 0 && errno == EAGAIN);
    sem_t semaphore;
    sem_init(&semaphore, 0, 0);
    clock_gettime(CLOCK_REALTIME, &time);
    if ((time.tv_nsec += 3000000) >= 1000000000) { time.tv_sec++; time.tv_nsec -= 1000000000; }
    CHECK(sem_timedwait(&semaphore, &time) < 0 && errno == ETIMEDOUT);
    CHECK(outer(i) == i + 3);
}

static __thread volatile int handled;
static void on_signal(int signal) {
    int saved = errno;
    handled += outer(1) == 4;
    errno = saved;
}

COUNTED static void signals(int i) {
    int before = handled;
    pthread_kill(pthread_self(), SIGUSR1);
    CHECK(handled == before + 1 && outer(i) == i + 3);
}

COUNTED static void recursion(int i) { CHECK(deep(20 + i) == 23 + i); }

// A thread that is cancelled in a system call: musl compares the address at which it waits.
static void *waits(void *argument) { for (;;) pause(); return argument; }

COUNTED static void cancelled(int i) {
    pthread_t thread;
    void *result;
    CHECK(!pthread_create(&thread, 0, waits, 0));
    if (i % 2) usleep(300);
    CHECK(!pthread_cancel(thread) && !pthread_join(thread, &result) && result == PTHREAD_CANCELED);
    CHECK(outer(i) == i + 3);
}

// Waits for ever.
COUNTED static void idle(int i) {
    static sem_t never;
    while (!stop) {
        struct timespec time;
        clock_gettime(CLOCK_REALTIME, &time);
        time.tv_sec += 1;
        sem_timedwait(&never, &time);
    }
}

static void *thread(void *kind) {
    void (*round)(int) = 0;
    switch ((long)kind) {
    case 'a': round = allocations; break;
    case 'j': round = jumps; break;
    case 't': round = new_thread; break;
    case 'f': round = child; break;
    case 'v': round = spawned; break;
    case 'b': round = blocked; break;
    case 's': round = signals; break;
    case 'r': round = recursion; break;
    case 'k': round = cancelled; break;
    case 'i': round = idle; break;
    }
    CHECK(round);
    for (int i = 0; !stop; i++) {
        round(i % 6);
        counters->rounds++;
    }
    return 0;
}

int main(int argc, char **argv) {
    int file = open("counters", O_RDWR | O_CREAT, 0600);
    CHECK(file >= 0 && ftruncate(file, 4096) == 0);
    counters = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, 0);
    pthread_t threads[1000];
    int count = strlen(argv[1]);
    for (int n = 0; n < count; n++) CHECK(!pthread_create(&threads[n], 0, thread, (void *)(long)argv[1][n]));
    setlinebuf(stdout);
    puts("ready");
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        for (int n = atoi(line); n; n--) step();
        puts("done");
    }
    stop = 1;
    for (int n = 0; n < count; n++) pthread_join(threads[n], 0);
    puts("the end");
    return 0;
}
