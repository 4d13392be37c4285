// Runs itself again and again: a process of a program begins after another one has ended, or while a child of that one still counts.
#include "common.h"
#include <glob.h>

// Writes a line to a file in this folder.
static void note(const char *file, const char *line) {
    int fd = open(file, O_WRONLY | O_CREAT | O_APPEND, 0600);
    CHECK(fd >= 0 && write(fd, line, strlen(line)) == (ssize_t)strlen(line) && !close(fd));
}

// Calls `use` for each mapping of the file of this process's counters.
static void mappings(void (*use)(char *from, char *to, unsigned long offset, unsigned long inode)) {
    static char text[1 << 20];
    int fd = open("/proc/self/maps", O_RDONLY);
    CHECK(fd >= 0);
    size_t len = 0;
    for (ssize_t n; (n = read(fd, text + len, sizeof text - 1 - len)) > 0; len += n) {}
    close(fd);
    text[len] = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        unsigned long from, to, offset, inode;
        int at = 0;
        if (sscanf(line, "%lx-%lx rw-s %lx %*s %lu %n", &from, &to, &offset, &inode, &at) == 4 && at
            && strstr(line + at, ".region"))
            use((char *)from, (char *)to, offset, inode);
    }
}

static unsigned long own;
static void keep(char *from, char *to, unsigned long offset, unsigned long inode) { own = inode; }

struct { uint64_t *from, *to; } parts[64];
static int count;
static void gather(char *from, char *to, unsigned long offset, unsigned long inode) {
    // The header says whether the counters are damaged.
    uint64_t *start = (uint64_t *)(from + (offset ? 0 : 4096));
    uint64_t *end = (uint64_t *)to;
    if (end - start > 1 << 16) end = start + (1 << 16);
    if (count < 64) parts[count].from = start, parts[count++].to = end;
}

// Leaves ones in all parts of the counters, and ends before anything is counted there.
static void litter(void) {
    mappings(gather);
    for (int i = 0; i < count; i++)
        for (volatile uint64_t *p = parts[i].from; p < parts[i].to; p++) *p = 1;
    asm volatile("syscall" :: "a"(SYS_exit_group), "D"(0) : "memory");
}

static void spawn(const char *self, const char *what) {
    char *arguments[] = {(char *)self, (char *)what, 0};
    pid_t pid;
    CHECK(!posix_spawn(&pid, self, 0, 0, arguments, environ) && !status_of(pid));
}

int main(int argc, char **argv) {
    char line[64], c;
    check_environment();
    if (!strcmp(argv[1], "count") || !strcmp(argv[1], "litter")) {
        times(work, 3);
        times(other, 7);
        mappings(keep);
        snprintf(line, sizeof line, "%d %lu %s\n", getpid(), own, argv[1]);
        note("processes", line);
        if (argv[1][0] == 'l') litter();
        return 0;
    }
    if (!strcmp(argv[1], "alternately")) {
        for (int i = 0; i < 8; i++) {
            spawn(argv[0], i % 2 ? "count" : "litter");
            // gprofinject reads the counts of the process in the meantime. Only then can the next one have its file.
            usleep(20000);
        }
        return 0;
    }
    if (!strcmp(argv[1], "removed")) {
        // Like a script that cleans up.
        for (int i = 0; i < 4; i++) {
            spawn(argv[0], "count");
            glob_t found;
            char pattern[4096];
            snprintf(pattern, sizeof pattern, "%s/gprofinject-*/[1-9]*.region", getenv("XDG_RUNTIME_DIR") ?: "/none");
            if (!glob(pattern, 0, 0, &found))
                for (size_t k = 0; k < found.gl_pathc; k++) CHECK(!unlink(found.gl_pathv[k]));
        }
        return 0;
    }
    if (!strcmp(argv[1], "parent")) {
        // A child that has a file of its own (f), or that can make none and counts in this process's (g), and outlives this process.
        times(work, 1);
        struct rlimit none = {0, 100};
        int guest = argv[2][0] == 'g';
        if (guest) CHECK(!setrlimit(RLIMIT_NOFILE, &none));
        pid_t pid = fork();
        if (pid) {
            CHECK(pid > 0);
            none.rlim_cur = 100;
            setrlimit(RLIMIT_NOFILE, &none);
            snprintf(line, sizeof line, "%d %d child\n", pid, 0);
            note("processes", line);
            snprintf(line, sizeof line, "%d %d parent\n", getpid(), 0);
            note("processes", line);
            return 0;
        }
        // 10 and 11 are ends of pipes.
        times(late, 2);
        CHECK(read(10, &c, 1) == 1);
        times(late, 9);
        CHECK(write(11, "x", 1) == 1);
        _exit(0);
    }
    // The first process: each "count" begins while the child of the "parent" before it waits.
    int go[2], done[2];
    CHECK(!pipe(go) && !pipe(done) && dup2(go[0], 10) == 10 && dup2(done[1], 11) == 11);
    for (int i = 0; i < 4; i++) {
        char *arguments[] = {argv[0], "parent", argv[1], 0};
        pid_t pid;
        CHECK(!posix_spawn(&pid, argv[0], 0, 0, arguments, environ) && !status_of(pid));
        spawn(argv[0], "count");
        CHECK(write(go[1], "x", 1) == 1 && read(done[0], &c, 1) == 1);
        spawn(argv[0], "count");
    }
    return 0;
}
