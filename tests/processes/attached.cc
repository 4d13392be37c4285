// A program to attach to. Its first argument has a letter for each thread; the first thread reads
// commands from standard input: a number says how often to call step(), and the program ends with its input. Calls are counted in the file "counters".
// The rounds of a thread repeat: at the end it prints the result of each six of them, or once if they are all the same.
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <set>
#include <stdexcept>
#include <string>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

#define COUNTED __attribute__((noinline, noipa))
#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %m\n", __LINE__, #what); abort(); } } while (0)

struct Counters { std::atomic<unsigned long> outer, inner, thrower, rounds; };
static Counters *counters;
static std::atomic<bool> stop{false};
static std::atomic<unsigned long> interrupted{0};
static volatile int sink;

extern "C" {
COUNTED void step(void) { sink++; }
COUNTED int inner(int x) { counters->inner++; return x + 1; }
COUNTED int outer(int x) { counters->outer++; return inner(inner(inner(x))); }
COUNTED int thrower(int x) { counters->thrower++; if (x % 3 == 0) throw std::runtime_error("x"); return x; }
COUNTED int deep(int depth) { volatile char room[600] = {0}; return depth ? deep(depth - 1) + 1 + room[depth % 600] : outer(0); }
}

static thread_local unsigned long digest;
static void note(unsigned long value) { digest = (digest ^ value) * 0x100000001b3 + 1; }

struct Guard { int &n; ~Guard() { n++; } };

COUNTED static int through(int x, int &cleaned) {
    Guard guard{cleaned};
    std::string text(x % 100, 'a');
    return thrower(x) + text.size();
}

COUNTED static void exceptions(int i) {
    int cleaned = 0, caught = 0;
    try { through(i, cleaned); } catch (const std::exception &e) { caught = !strcmp(e.what(), "x"); }
    CHECK(cleaned == 1 && caught == (i % 3 == 0));
    note(caught * 2 + cleaned);
}

COUNTED static void allocations(int i) {
    std::map<int, std::string> many;
    for (int n = 0; n < 10; n++) many[n * i] = std::string(n * 7, 'b');
    for (int n = 0; n < 10; n++) CHECK(i == 0 || many[n * i].size() == size_t(n * 7));
    for (auto &[key, text] : many) note(key + std::hash<std::string>()(text));
    CHECK(outer(i) == i + 3);
}

// The exception takes as much time as the rest.
COUNTED static void exceptions_and_more(int i) {
    exceptions(i);
    for (int n = 0; n < 300; n++) CHECK(outer(n) == n + 3);
}

COUNTED static void new_thread(int i) {
    int result = 0;
    try {
        std::thread made([&] { result = outer(i); exceptions(i); });
        made.join();
    } catch (const std::system_error &) {
        // Another thread is executing a program, so this one is about to end.
        pause();
    }
    CHECK(result == i + 3);
    note(result);
}

COUNTED static void child(int i) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int result = 0;
        for (int n = 0; n < 50; n++) { step(); result++; }
        try { throw i; } catch (int thrown) { result += thrown == i; }
        _exit(result);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 51);
    note(status);
    usleep(500);
}

COUNTED static void vforked(int) {
    pid_t pid = vfork();
    CHECK(pid >= 0);
    if (pid == 0) { execl("/bin/true", "true", (char *)0); _exit(9); }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    note(status);
}

static void call(const char *name, int result) {
    note(result < 0 ? errno : result);
    if (result < 0 && errno == EINTR && !stop) { fprintf(stderr, "%s: %m\n", name); interrupted++; }
}

COUNTED static void blocked(int) {
    static int epoll = epoll_create1(0);
    struct epoll_event event;
    call("epoll_wait", epoll_wait(epoll, &event, 1, 5));
    call("poll", poll(0, 0, 5));
    struct timespec time = {0, 7000000};
    call("nanosleep", nanosleep(&time, 0));
    struct timeval tv = {0, 5000};
    call("select", select(0, 0, 0, 0, &tv));
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    call("sigtimedwait", sigtimedwait(&set, 0, &time));
    sem_t semaphore;
    sem_init(&semaphore, 0, 0);
    clock_gettime(CLOCK_REALTIME, &time);
    if ((time.tv_nsec += 6000000) >= 1000000000) { time.tv_sec++; time.tv_nsec -= 1000000000; }
    call("sem_timedwait", sem_timedwait(&semaphore, &time));
}


// Waits in a futex, and reads a pipe.
COUNTED static void handed_over(int) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    int ends[2];
    CHECK(pipe(ends) == 0);
    bool ready = false;
    std::thread other([&] {
        usleep(300);
        pthread_mutex_lock(&mutex);
        ready = true;
        pthread_cond_broadcast(&condition);
        pthread_mutex_unlock(&mutex);
        usleep(300);
        CHECK(write(ends[1], "y", 1) == 1);
    });
    pthread_mutex_lock(&mutex);
    while (!ready) pthread_cond_wait(&condition, &mutex);
    pthread_mutex_unlock(&mutex);
    char c;
    CHECK(read(ends[0], &c, 1) == 1 && c == 'y');
    note(c);
    other.join();
    close(ends[0]);
    close(ends[1]);
}

static thread_local int handled;

static void on_signal(int) { int saved = errno; handled++; outer(1); exceptions(3); errno = saved; }

// On a stack of its own, far from all other memory.
COUNTED static void signals(int i) {
    static thread_local std::vector<char> stack;
    if (stack.empty()) {
        stack.resize(256 << 10);
        stack_t alternate = {stack.data(), 0, stack.size()};
        CHECK(sigaltstack(&alternate, 0) == 0);
    }
    int before = handled;
    pthread_kill(pthread_self(), SIGUSR1);
    CHECK(handled == before + 1);
    note(i);
    CHECK(outer(i) == i + 3);
}

static ucontext_t here, there;
COUNTED static void yields(int i) { swapcontext(&there, &here); CHECK(outer(i) == i + 3); }
static void coroutine(void) { for (int i = 0;; i++) yields(i); }

COUNTED static void coroutines(int i) {
    static char *stack;
    if (!stack) {
        getcontext(&there);
        stack = (char *)mmap(0, 64 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        there.uc_stack.ss_sp = stack;
        there.uc_stack.ss_size = 64 << 10;
        makecontext(&there, coroutine, 0);
    }
    swapcontext(&here, &there);
    CHECK(outer(i) == i + 3);
    note(i);
}

COUNTED static void recursion(int) { int depth = deep(5000); CHECK(depth == 5003); note(depth); }

// Waits for ever, on the part of the stack that the last exception has left.
COUNTED static void waits_after_exception(int) {
    try { int cleaned = 0; through(3, cleaned); } catch (const std::exception &) {}
    volatile char room[16384];
    struct pollfd never = {-1, 0, 0};
    room[0] = 1;
    while (!stop) poll(&never, 1, 100);
}

// Its child makes the thread wait uninterruptibly until a file exists (or the test must have ended).
static void vfork_and_wait(void) {
    pid_t pid = vfork();
    CHECK(pid >= 0);
    if (pid == 0) {
        close(open("vforked", O_CREAT | O_WRONLY, 0600));
        for (int n = 0; n < 40000 && access("go", F_OK); n++) usleep(1000);
        _exit(0);
    }
    CHECK(waitpid(pid, 0, 0) == pid);
}

static void thread(char kind, std::string *said) {
    void (*round)(int) = 0;
    switch (kind) {
    case 'a': round = allocations; break;
    case 'x': round = exceptions_and_more; break;
    case 't': round = new_thread; break;
    case 'f': round = child; break;
    case 'v': round = vforked; break;
    case 'b': round = blocked; break;
    case 'h': round = handed_over; break;
    case 's': round = signals; break;
    case 'c': round = coroutines; break;
    case 'r': round = recursion; break;
    case 'w': round = waits_after_exception; break;
    }
    CHECK(round);
    const int period = 6;
    std::set<unsigned long> digests;
    while (!stop || digests.empty()) {
        digest = 0;
        int i = 0;
        for (; i < period && (!stop || digests.empty()); i++) {
            round(i);
            counters->rounds++;
        }
        if (i == period) digests.insert(digest);
    }
    for (unsigned long one : digests) *said += " " + std::to_string(one);
}

int main(int, char **argv) {
    int file = open("counters", O_RDWR | O_CREAT, 0600);
    CHECK(file >= 0 && ftruncate(file, 4096) == 0);
    counters = (Counters *)mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK | SA_RESTART;
    sigaction(SIGUSR1, &action, 0);
    std::vector<std::thread> threads;
    std::vector<std::string> said(strlen(argv[1]));
    for (size_t n = 0; n < said.size(); n++) threads.emplace_back(thread, argv[1][n], &said[n]);
    setlinebuf(stdout);
    puts("ready");
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "exit\n")) exit(5);
        if (!strcmp(line, "exec\n")) execl("/bin/sleep", "sleep", "0.3", (char *)0);
        if (!strcmp(line, "vfork\n")) vfork_and_wait();
        // Another user, with another root folder.
        if (!strcmp(line, "elsewhere\n")) CHECK(!chroot("/sys") && !chdir("/") && !setgid(65534) && !setuid(65534));
        for (int n = atoi(line); n; n--) step();
        puts("done");
    }
    stop = true;
    for (std::thread &thread : threads) thread.join();
    for (size_t n = 0; n < said.size(); n++) printf("%c:%s\n", argv[1][n], said[n].c_str());
    printf("the end, %lu calls interrupted\n", interrupted.load());
    return 0;
}
