// A program to attach to: "fork" makes it fork a child, which lives until the end and whose number it writes to the file
// "child". A number says how often to call step().
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile int stop, sink;
__attribute__((noinline, noclone)) void step(void) { sink++; }
__attribute__((noinline, noclone)) static void live(void) {
    do {
        step();
        usleep(200);
    } while (!stop);
}
static void on_term(int signal) { stop = 1; }
int main(void) {
    char line[64];
    pid_t child = 0;
    signal(SIGTERM, on_term);
    setlinebuf(stdout);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "fork\n")) {
            if (!(child = fork())) {
                live();
                _exit(sink > 0 ? 7 : 8);
            }
            FILE *file = fopen("child", "w");
            fprintf(file, "%d", (int)child);
            fclose(file);
        } else {
            for (int n = atoi(line); n; n--) step();
        }
        puts("done");
    }
    int status = 0;
    if (child) {
        kill(child, SIGTERM);
        waitpid(child, &status, 0);
    }
    printf("child: %d %d\n", WIFEXITED(status), WEXITSTATUS(status));
    return 0;
}
