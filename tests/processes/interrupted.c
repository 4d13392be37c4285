// Threads that wait in every way that a signal can interrupt, while another process sends signals that this one ignores.
// Prints which of their calls have ended with EINTR: none, if nothing else disturbs them.
//
// The other process begins to send only when all threads have been made. pthread_create() blocks all signals in the main
// thread for as long as it takes, and the kernel does not drop an ignored signal that the main thread blocks: it wakes
// another thread instead, whose epoll_wait() then ends with EINTR although no other process is involved.
//
// With the argument "late", the main thread and one more spend most of their time waiting for children that they have made by
// vfork(). A thread that does so cannot be stopped.
//
// With a number, the other process sends this one SIGSTOP and SIGCONT in turn instead, and this one prints how often it
// did not stop, or did not continue. With 0, it has no thread but the main one.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MS 1000000L
enum {
    EPOLL, EPOLL_PWAIT, EPOLL_PWAIT2, POLL, PPOLL, SELECT, PSELECT, SEM, NANOSLEEP, CLOCK, SEMOP, MSG, MQ, RECV, SEND, ACCEPT,
    SIGWAIT, COND, AIO, URING, MAIN, KINDS
};
static const char *const NAMES[KINDS] = {"epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select", "pselect",
    "sem_timedwait", "nanosleep", "clock_nanosleep", "semtimedop", "msgrcv", "mq_timedreceive", "recv", "send", "accept",
    "sigtimedwait", "cond", "io_getevents", "io_uring_enter", "main"};

struct shared {
    volatile int complete;
    volatile long rounds, interrupted[KINDS], signals, cycles, not_stopped, not_continued;
    volatile int tids[KINDS];
};
static struct shared *shared;
static struct timespec wait_time = {0, 37 * MS};
static int queue, semaphores;

static struct timespec after(clockid_t clock, long ns) {
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_nsec += ns;
    if (t.tv_nsec >= 1000 * MS) t.tv_sec++, t.tv_nsec -= 1000 * MS;
    return t;
}

static int timed_socket(int type) {
    int s = socket(AF_UNIX, type, 0);
    struct timeval time = {0, 37000};
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
    struct sockaddr_un address = {AF_UNIX, ""};
    bind(s, (struct sockaddr *)&address, sizeof(sa_family_t));
    if (type == SOCK_STREAM) listen(s, 1);
    return s;
}

// One end of a connection whose other end is never read, filled until there is no room left.
static int full_socket(void) {
    int ends[2];
    struct timeval time = {0, 37000};
    char bytes[4096] = "";
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    while (send(ends[0], bytes, sizeof bytes, MSG_DONTWAIT) > 0) {}
    setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
    return ends[0];
}

// A message queue without a name, to which nothing is written.
static mqd_t empty_queue(void) {
    char name[32];
    snprintf(name, sizeof name, "/interrupted-%d", getpid());
    struct mq_attr attributes = {.mq_maxmsg = 1, .mq_msgsize = 8};
    mqd_t queue = mq_open(name, O_CREAT | O_EXCL | O_RDONLY, 0600, &attributes);
    mq_unlink(name);
    return queue;
}

// Waits for completions of a ring that has nothing to do. If the kernel permits no rings, it waits in another way.
static int wait_for_ring(void) {
    static __thread int ring = -2;
    struct __kernel_timespec time = {0, 37 * MS};
    struct io_uring_getevents_arg argument = {.ts = (unsigned long)&time};
    if (ring == -2) { struct io_uring_params parameters = {0}; ring = syscall(SYS_io_uring_setup, 1, &parameters); }
    if (ring < 0) return usleep(37000);
    return syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &argument, sizeof argument);
}

// Waits once.
__attribute__((noinline)) int await(long kind) {
    static __thread int fd = -1;
    static __thread sem_t semaphore;
    static __thread mqd_t messages;
    static __thread aio_context_t context;
    struct epoll_event event;
    struct io_event completion;
    struct { long type; char text[8]; } message;
    struct sembuf operation = {0, -1, 0};
    struct timespec t;
    fd_set none;
    sigset_t set;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
    char byte;
    errno = 0;
    switch (kind) {
    case EPOLL: if (fd < 0) fd = epoll_create1(0); return epoll_wait(fd, &event, 1, 37);
    case EPOLL_PWAIT: if (fd < 0) fd = epoll_create1(0); sigemptyset(&set); return epoll_pwait(fd, &event, 1, 37, &set);
    case EPOLL_PWAIT2: if (fd < 0) fd = epoll_create1(0); return syscall(SYS_epoll_pwait2, fd, &event, 1, &wait_time, 0, 0);
    case POLL: return poll(0, 0, 37);
    case PPOLL: return ppoll(0, 0, &wait_time, 0);
    case SELECT: { struct timeval time = {0, 37000}; FD_ZERO(&none); return select(0, &none, 0, 0, &time); }
    case PSELECT: FD_ZERO(&none); return pselect(0, &none, 0, 0, &wait_time, 0);
    case SEM: if (fd < 0) fd = 1, sem_init(&semaphore, 0, 0); t = after(CLOCK_REALTIME, 37 * MS); return sem_timedwait(&semaphore, &t);
    case NANOSLEEP: return nanosleep(&wait_time, 0);
    case CLOCK: t = after(CLOCK_MONOTONIC, 37 * MS); errno = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0); return 0;
    case SEMOP: return semtimedop(semaphores, &operation, 1, &wait_time);
    case MSG: return msgrcv(queue, &message, sizeof message.text, 0, 0);
    case MQ:
        if (fd < 0) fd = 1, messages = empty_queue();
        t = after(CLOCK_REALTIME, 37 * MS);
        return mq_timedreceive(messages, message.text, sizeof message.text, 0, &t);
    case RECV: if (fd < 0) fd = timed_socket(SOCK_DGRAM); return recv(fd, &byte, 1, 0);
    case SEND: if (fd < 0) fd = full_socket(); return send(fd, &byte, 1, MSG_NOSIGNAL);
    case ACCEPT: if (fd < 0) fd = timed_socket(SOCK_STREAM); return accept(fd, 0, 0);
    case SIGWAIT: sigemptyset(&set); sigaddset(&set, SIGUSR2); return sigtimedwait(&set, 0, &wait_time);
    case COND:
        pthread_mutex_lock(&mutex);
        t = after(CLOCK_REALTIME, 37 * MS);
        pthread_cond_timedwait(&cond, &mutex, &t);
        return pthread_mutex_unlock(&mutex);
    case AIO:
        if (fd < 0) fd = 1, syscall(SYS_io_setup, 1, &context);
        return syscall(SYS_io_getevents, context, 1, 1, &completion, &wait_time);
    case URING: return wait_for_ring();
    }
    return 0;
}

static void *waiter(void *p) {
    long kind = (long)p;
    shared->tids[kind] = syscall(SYS_gettid);
    for (;;) {
        await(kind);
        if (errno == EINTR) shared->interrupted[kind]++;
        shared->rounds++;
    }
}

// Waits for this time for a child that has not executed a program.
static void wait_for_child(long ns) {
    struct timespec time = {0, ns};
    if (vfork() == 0) {
        nanosleep(&time, 0);
        _exit(0);
    }
}

static void *parent_thread(void *p) {
    struct timespec time = {0, 5 * MS};
    for (;;) wait_for_child(140 * MS), nanosleep(&time, 0);
}

static void send_ignored(int parent) {
    const int signals[] = {SIGURG, SIGCHLD, SIGWINCH, SIGUSR1};
    while (!shared->complete) usleep(1000);
    for (long n = 0;; n++) {
        // To the process, and to one of its threads.
        kill(parent, signals[n % 4]);
        int tid = shared->tids[n % KINDS];
        if (tid) syscall(SYS_tgkill, parent, tid, signals[n / 4 % 4]);
        shared->signals += 2;
        if (n % 64 == 0) { struct { long type; char text[8]; } message = {1, ""}; msgsnd(queue, &message, 8, IPC_NOWAIT); }
        usleep(500);
    }
}

// The state of each thread, as the kernel shows it: T stopped, t traced.
static char state(int pid) {
    char path[64], line[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY);
    if (fd < 0) _exit(0);
    if (read(fd, line, sizeof line - 1) <= 0) _exit(0);
    close(fd);
    char *end = strrchr(line, ')');
    return end ? end[2] : 0;
}

// Waits until it is in that state, or not in it, for up to two seconds.
static int becomes(int pid, int stopped) {
    struct timespec end = after(CLOCK_MONOTONIC, 0), now_is;
    end.tv_sec += 2;
    do {
        char now = state(pid);
        if (now == 'Z' || now == 'X') _exit(0);
        if (stopped ? now == 'T' : now != 'T' && now != 't') return 1;
        usleep(100);
        clock_gettime(CLOCK_MONOTONIC, &now_is);
    } while (now_is.tv_sec < end.tv_sec || now_is.tv_sec == end.tv_sec && now_is.tv_nsec < end.tv_nsec);
    return 0;
}

static void send_stops(int parent) {
    for (long n = 0;; n++) {
        kill(parent, SIGSTOP);
        shared->not_stopped += !becomes(parent, 1);
        usleep(n % 7 * 100);
        kill(parent, SIGCONT);
        shared->not_continued += !becomes(parent, 0);
        shared->cycles++;
        usleep(200 + n % 13 * 300);
    }
}

__attribute__((noinline)) void step(void) { __asm__ volatile("" ::: "memory"); }

int main(int argc, char **argv) {
    int late = argc > 1 && !strcmp(argv[1], "late"), stops = argc > 1 && !late, parent = getpid();
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    queue = msgget(IPC_PRIVATE, 0600);
    semaphores = semget(IPC_PRIVATE, 1, 0600);
    signal(SIGUSR1, SIG_IGN);
    int child = fork();
    if (child == 0) {
        // It ends with its parent, wherever the output goes.
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(0), close(1), close(2);
        if (stops) send_stops(parent);
        send_ignored(parent);
    }
    for (long kind = 0; kind < MAIN && !(stops && atoi(argv[1]) == 0); kind++) {
        pthread_t thread;
        pthread_create(&thread, 0, waiter, (void *)kind);
    }
    if (late) {
        pthread_t thread;
        // The kernel sends no SIGCHLD then. It would count as sent to the thread that has made the child.
        signal(SIGCHLD, SIG_IGN);
        pthread_create(&thread, 0, parent_thread, 0);
    }
    shared->tids[MAIN] = parent;
    shared->complete = 1;
    puts("ready");
    fflush(stdout);
    for (;;) {
        char line[16];
        errno = 0;
        struct pollfd input = {0, POLLIN, 0};
        int ready = poll(&input, 1, 29);
        shared->interrupted[MAIN] += ready < 0 && errno == EINTR;
        step();
        if (late) wait_for_child(60 * MS);
        if (ready <= 0) continue;
        if (read(0, line, sizeof line) <= 0) break;
        // The other process may be waiting for a stop just now.
        for (long seen = shared->cycles; stops && shared->cycles < seen + 2;) usleep(1000);
        if (stops) printf("not stopped %ld, not continued %ld", shared->not_stopped, shared->not_continued);
        else printf("interrupted:");
        for (int kind = 0; kind < KINDS; kind++)
            if (shared->interrupted[kind] && !stops) printf(" %s %ld", NAMES[kind], shared->interrupted[kind]);
        puts("");
        fflush(stdout);
    }
    fprintf(stderr, "%ld waits, %ld signals, %ld stops\n", shared->rounds, shared->signals, shared->cycles);
    kill(child, SIGKILL);
    msgctl(queue, IPC_RMID, 0);
    semctl(semaphores, 0, IPC_RMID);
    _exit(0);
}
