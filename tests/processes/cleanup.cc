// Threads that wait in destructors while an exception is on its way, so that gprofinject cannot leave; another
// process sends signals that this one ignores. Prints how many calls have ended with EINTR: none, if nothing else disturbs them.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <unistd.h>

static const int THREADS = 4, WAIT = 3, PAUSE = 9;
struct Shared { volatile int complete; volatile long waits, epolls, semaphores; };
static Shared *shared;
static int semaphores;

struct Waiter {
    int epoll;
    __attribute__((noinline)) ~Waiter() {
        epoll_event event;
        sembuf operation = {0, -1, 0};
        timespec time = {0, WAIT * 1000000};
        if (epoll >= 0 && epoll_wait(epoll, &event, 1, WAIT) < 0 && errno == EINTR) shared->epolls++;
        if (epoll < 0 && semtimedop(semaphores, &operation, 1, &time) < 0 && errno == EINTR) shared->semaphores++;
        shared->waits++;
    }
};

__attribute__((noinline)) static void fail(long n) { if (n >= 0) throw n; }

__attribute__((noinline)) static void wait_in_cleanup(int epoll, long n) {
    Waiter waiter = {epoll};
    fail(n);
}

static void *wait(void *p) {
    int epoll = p ? epoll_create1(0) : -1;
    for (long n = 0;; n++)
        try { wait_in_cleanup(epoll, n); } catch (long) { usleep(PAUSE * 1000); }
}

int main() {
    int parent = getpid();
    shared = static_cast<Shared *>(mmap(nullptr, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    semaphores = semget(IPC_PRIVATE, 1, 0600);
    int child = fork();
    if (child == 0) {
        // It ends with its parent, wherever the output goes.
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(0), close(1), close(2);
        // pthread_create() blocks signals in the main thread, and an ignored one then wakes another thread.
        while (!shared->complete) usleep(1000);
        for (;;) kill(parent, SIGURG), usleep(50);
    }
    for (long n = 0; n < THREADS; n++) {
        pthread_t thread;
        pthread_create(&thread, nullptr, wait, reinterpret_cast<void *>(n % 2));
    }
    shared->complete = 1;
    puts("ready");
    fflush(stdout);
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        printf("interrupted: epoll_wait %ld, semtimedop %ld\n", shared->epolls, shared->semaphores);
        fflush(stdout);
    }
    fprintf(stderr, "%ld waits\n", shared->waits);
    kill(child, SIGKILL);
    semctl(semaphores, 0, IPC_RMID);
    _exit(0);
}
