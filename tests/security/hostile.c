// A process that attacks the gprofinject that attaches to it: it keeps the region file open, truncates it, extends it,
// overwrites all of it, fills the tables of the agent, or has mapped what looks like libraries. The argument says which.
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

volatile int sink;
__attribute__((noipa)) void step(void) { sink++; }

static const char *way;
static volatile int region = -1;

// Finds the region file among the descriptors while the agent has it open.
static void *catch (void *unused) {
    for (;;) {
        for (int fd = 3; fd < 12; fd++) {
            char link[64], target[4096];
            if (fcntl(fd, F_GETFD) < 0) continue;
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            ssize_t len = readlink(link, target, sizeof target - 1);
            if (len <= 0 || fd == region) continue;
            target[len] = 0;
            if (region < 0 && strstr(target, ".region")) region = fcntl(fd, F_DUPFD, 100);
        }
    }
}

struct mapping {
    uint64_t lo, hi;
};

static struct mapping find(const char *what, uint64_t len) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[8192];
    struct mapping found = {0, 0};
    while (fgets(line, sizeof line, maps)) {
        unsigned long lo, hi;
        char access[8];
        sscanf(line, "%lx-%lx %7s", &lo, &hi, access);
        if ((what ? strstr(line, what) != 0 : !strchr(line, '/')) && access[1] == 'w' && hi - lo >= len) {
            found = (struct mapping){lo, hi};
            break;
        }
    }
    fclose(maps);
    return found;
}

// Maps the first page of a file of this length, `times` times. It begins like an ELF object with `headers` program headers,
// which say that all of it is code.
static void pretend(uint64_t len, int headers, int times, const char *what) {
    Elf64_Ehdr header = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                         .e_type = ET_DYN,
                         .e_machine = EM_X86_64,
                         .e_version = EV_CURRENT,
                         .e_phoff = sizeof header,
                         .e_shoff = len - 8,
                         .e_ehsize = sizeof header,
                         .e_phentsize = sizeof(Elf64_Phdr),
                         .e_phnum = headers,
                         .e_shentsize = sizeof(Elf64_Shdr),
                         .e_shnum = 0xfeff};
    Elf64_Phdr code = {.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_filesz = 4096, .p_memsz = 4096};
    int fd = memfd_create(what, 0);
    if (fd < 0 || ftruncate(fd, len)) exit(91);
    pwrite(fd, &header, sizeof header, 0);
    for (int n = 0; n < headers && n < 60; n++) pwrite(fd, &code, sizeof code, sizeof header + n * sizeof code);
    for (int n = 0; n < times; n++)
        if (mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED) exit(92);
    close(fd);
}

int main(int argc, char **argv) {
    way = argv[1];
    if (strcmp(way, "libraries") == 0) {
        // Longer than gprofinject reads, many of them, and names that are no names.
        pretend(1L << 40, 1, 2, "libendless.so");
        pretend(6L << 30, 1, 2, "liblong.so");
        pretend(64L << 20, 1, 3, "libzero.so");
        pretend(1 << 16, 0xffff, 3, "libheaders.so");
        for (int n = 0; n < 40; n++) {
            char name[200];
            snprintf(name, sizeof name, "lib\033[2J\n%d%%s../../../etc/passwd (deleted)", n);
            pretend(8192 + n, 1, 20, name);
        }
    }
    pthread_t thread;
    if (strcmp(way, "lock") == 0) {
        int fd = open("/proc/self/maps", O_RDONLY);
        if (flock(fd, LOCK_EX)) return 90;
    }
    if (strcmp(way, "cut") == 0 || strcmp(way, "grow") == 0) pthread_create(&thread, 0, catch, 0);
    puts("ready");
    fflush(stdout);
    uint64_t random = 88172645463325252u;
    for (int rounds = 0;; rounds++) {
        for (int i = 0; i < 100; i++) step();
        usleep(1000);
        if (region >= 0 && rounds % 10 == 0) {
            // The agent's own mapping would be truncated, too, so nothing is called any more.
            if (strcmp(way, "cut") == 0) {
                if (!ftruncate(region, 100)) puts("done");
                fflush(stdout);
                for (;;) pause();
            }
            if (!ftruncate(region, 1L << 60) && pwrite(region, "x", 1, (1L << 60) - 1) == 1) puts("done");
            fflush(stdout);
            for (;;) {
                step();
                usleep(1000);
            }
        }
        if (strcmp(way, "scribble") == 0) {
            struct mapping found = find(".region", 0);
            if (!found.lo) continue;
            // Long enough for gprofinject to attach.
            usleep(500000);
            // The header, and all counters that there are.
            FILE *maps = fopen("/proc/self/maps", "r");
            char line[8192];
            while (fgets(line, sizeof line, maps)) {
                unsigned long lo, hi;
                char access[8];
                sscanf(line, "%lx-%lx %7s", &lo, &hi, access);
                if (!strstr(line, ".region") || access[1] != 'w') continue;
                for (uint64_t at = lo; at < hi && at < lo + (1 << 16); at += 8) {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    *(volatile uint64_t *)at = random;
                }
            }
            puts("done");
            fflush(stdout);
            for (;;) pause();
        }
        if (strcmp(way, "shadows") == 0) {
            // The table has one word for each 64 MiB of the address space; it may be one mapping with what is beside it. Each word names a
            // shadow whose cells all look used: two bytes for each of the stack, and a page in front.
            struct mapping found = find(0, 16 << 20);
            if (!found.lo || !find(".region", 0).lo) continue;
            uint64_t len = 4096 + (256 << 20);
            char *used = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (used == MAP_FAILED) return 93;
            for (uint64_t at = 0; at < 4096 + (128 << 20); at += 8) *(volatile uint64_t *)(used + at) = (uint64_t)used + 4096;
            usleep(500000);
            for (uint64_t at = found.lo; at < found.hi; at += 8) *(volatile uint64_t *)at = (uint64_t)used + 4096;
            puts("done");
            fflush(stdout);
            for (;;) {
                step();
                usleep(1000);
            }
        }
    }
}
