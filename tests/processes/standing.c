// Prints its standing among process groups and sessions, and which signals it gets.
#include "common.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
static volatile sig_atomic_t interrupted, continued, ended;
static void note(int signal) {
    if (signal == SIGINT) interrupted++;
    if (signal == SIGCONT) continued++;
    if (signal == SIGTERM) ended++;
}
static void tell(const char *what) {
    printf("@%s: interrupted %d continued %d ended %d\n", what, interrupted, continued, ended);
    fflush(stdout);
}
int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = note};
    sigaction(SIGINT, &action, NULL), sigaction(SIGCONT, &action, NULL), sigaction(SIGTERM, &action, NULL);
    times(work, 3);
    int terminal = open("/dev/tty", O_RDWR);
    printf("@leads its group: %d, its session: %d, terminal: %d, in the foreground: %d\n", getpgrp() == getpid(), getsid(0) == getpid(),
           terminal >= 0, terminal >= 0 && tcgetpgrp(terminal) == getpgrp());
    printf("@signals its group: %d\n", kill(-getpid(), 0));
    fflush(stdout);
    if (argc < 2) return 3;
    if (!strcmp(argv[1], "group")) {
        // A helper in the same group ends with it.
        pid_t helper = fork();
        if (!helper) {
            signal(SIGTERM, SIG_DFL);
            for (;;) pause();
        }
        usleep(50000);
        int status = kill(-getpid(), SIGTERM);
        if (status) kill(helper, SIGKILL);
        waitpid(helper, &status, 0);
        printf("@helper: signal %d\n", WTERMSIG(status));
        tell("group");
        return 4;
    }
    // Each line that is read is a question. Signals are handled while the program waits only, so that each is told,
    // whenever it comes.
    sigset_t handled, before;
    sigemptyset(&handled), sigaddset(&handled, SIGINT), sigaddset(&handled, SIGCONT), sigaddset(&handled, SIGTERM);
    sigprocmask(SIG_BLOCK, &handled, &before);
    setvbuf(stdin, NULL, _IONBF, 0);
    char line[100];
    for (;;) {
        struct pollfd input = {.fd = 0, .events = POLLIN};
        errno = 0;
        if (ppoll(&input, 1, NULL, &before) == 1) {
            // In the background, it may be the shell's input: then this stops, and begins again after signals.
            sigprocmask(SIG_SETMASK, &before, NULL);
            char *read = fgets(line, sizeof line, stdin);
            int error = errno;
            sigprocmask(SIG_BLOCK, &handled, NULL);
            if (!read && error != EINTR) break;
            errno = error;
        }
        if (errno == EINTR) {
            clearerr(stdin);
            tell("signal");
            continue;
        }
        line[strcspn(line, "\r\n")] = 0;
        tell(line);
        if (!strcmp(line, "stop")) raise(SIGSTOP), tell("went on");
    }
    tell("end");
    return 5;
}
