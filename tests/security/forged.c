// Has mappings that look as if it were profiled: from a run folder that it has made itself, with a record of what has to
// be undone. A process that trusted the record would write through its symbolic links and work through its table for ever.
// Arguments: the folder to make, a file to which the record leads, and a lock to hold or "".
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[4096];

static const char *in(const char *folder, const char *name) {
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static unsigned long long started(void) {
    char text[4096] = {0};
    int fd = open("/proc/self/stat", O_RDONLY);
    if (read(fd, text, sizeof text - 1) < 0) exit(90);
    close(fd);
    char *at = strrchr(text, ')');
    for (int field = 2; field < 22; field++) at = strchr(at + 1, ' ');
    return strtoull(at + 1, 0, 10);
}

static void auxiliary(FILE *out) {
    uint64_t pair[2];
    int fd = open("/proc/self/auxv", O_RDONLY), first = 1;
    while (read(fd, pair, sizeof pair) == sizeof pair) {
        fprintf(out, "%s[%llu,%llu]", first ? "" : ",", (unsigned long long)pair[0], (unsigned long long)pair[1]);
        first = 0;
    }
    close(fd);
}

volatile int sink;
__attribute__((noipa)) void step(void) { sink++; }

int main(int argc, char **argv) {
    const char *folder = argv[1], *victim = argv[2];
    if (mkdir(folder, 0700)) return 91;
    int fd = open(in(folder, "0.region"), O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 1 << 20)) return 92;
    if (mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED) return 93;
    // A page that begins with the bytes of an ELF file, as the agent's first page does.
    char *image = mmap(0, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(image, "\177ELF", 4);
    unsigned long long at = (unsigned long long)image;
    FILE *out = fopen(in(folder, "attached.json"), "w");
    fprintf(out, "{\"pid\":%d,\"started\":%llu,\"auxiliary\":[", getpid(), started());
    auxiliary(out);
    fprintf(out, "],\"image\":{\"start\":%llu,\"end\":%llu},\"code\":{\"start\":%llu,\"end\":%llu},", at, at + 65536, at,
            at + 65536);
    fprintf(out, "\"order\":%llu,\"stack\":%llu,\"entry\":%llu,\"instruction\":%llu,", at + 4096, at + 32768, at, at);
    fprintf(out, "\"arena\":{\"start\":0,\"end\":0},\"words\":[0,0,0,0],\"shadows\":0,\"mapped\":%llu,", at + 8192);
    fprintf(out, "\"waiting\":[0,0,0],\"detours\":[],\"patched\":[");
    for (int n = 0; n < 100000; n++) {
        fprintf(out, "%s{\"addresses\":{\"start\":%d,\"end\":%d},\"cave\":false}", n ? "," : "", 8 * n, 8 * n + 4);
    }
    fprintf(out, "],\"unwinder\":[],\"paused\":false,\"folder\":\"%s\"}", folder);
    fclose(out);
    for (const char **name = (const char *[]){"attached.new", "attached.json.new", "run.new", "run.json.new", 0}; *name; name++) {
        if (symlink(victim, in(folder, *name))) return 94;
    }
    close(open(in(folder, "lock"), O_RDWR | O_CREAT, 0600));
    if (argc > 3 && *argv[3]) {
        int lock = open(argv[3], O_RDONLY);
        if (lock < 0 || flock(lock, LOCK_EX)) return 95;
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        step();
        usleep(1000);
    }
}
