// Makes code at run time and says what it is, as a JIT compiler does: in a perf map, or in a jitdump. It prints how long it was in each
// function, in CPU time: `spent NAME MICROSECONDS`.
//
//     made map       writes the map before it runs the code
//     made exit      writes the map when it ends
//     made dump      writes a jitdump: other functions are made at the same addresses, and one is moved
//     made none      says nothing
//     made link      the map is a symbolic link to a file that has it
//     made foreign   the map belongs to another user
//     made old       the map is older than the process
//     made many      200,000 functions call helper twice each
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef long (*Made)(long turns, long (*function)(long));

static unsigned char *room;
static int dump = -1;
static const char *mode;

// A function of the program that the code calls.
__attribute__((noinline)) long helper(long number) {
    __asm__ volatile("" ::: "memory");
    return number + 1;
}

// push rbp; mov rbp, rsp; push rbx; push rdi; mov rbx, rdi
// turn: imul rax, rax, 3; dec rbx; jnz turn
// pop rdi; mov rax, rsi; test rax, rax; je end; call rax
// end: pop rbx; pop rbp; ret
static const unsigned char LOOP[] = {0x55, 0x48, 0x89, 0xe5, 0x53, 0x57, 0x48, 0x89, 0xfb,
                                     0x48, 0x6b, 0xc0, 0x03, 0x48, 0xff, 0xcb, 0x75, 0xf7,
                                     0x5f, 0x48, 0x89, 0xf0, 0x48, 0x85, 0xc0, 0x74, 0x02, 0xff, 0xd0,
                                     0x5b, 0x5d, 0xc3};

// push rbp; mov rbp, rsp; mov rax, rdx; xor esi, esi; call rax; pop rbp; ret
static const unsigned char CALLS[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xd0, 0x31, 0xf6, 0xff, 0xd0, 0x5d, 0xc3};

static uint64_t now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static void put(int file, const void *bytes, size_t size) {
    if (write(file, bytes, size) != (ssize_t)size) exit(2);
}

static void record(uint32_t id, const void *body, size_t size, const char *name, const void *code, size_t len) {
    uint32_t head[2] = {id, 16 + size + (name ? strlen(name) + 1 : 0) + len};
    uint64_t time = now(CLOCK_MONOTONIC);
    put(dump, head, 8);
    put(dump, &time, 8);
    put(dump, body, size);
    if (name) put(dump, name, strlen(name) + 1);
    put(dump, code, len);
}

static void loaded(unsigned char *at, size_t len, const char *name, uint64_t number) {
    struct { uint32_t pid, tid; uint64_t vma, address, len, number; } body =
        {getpid(), getpid(), (uint64_t)at, (uint64_t)at, len, number};
    record(0, &body, sizeof body, name, at, len);
}

static void begin_dump(void) {
    char name[64];
    snprintf(name, sizeof name, "jit-%d.dump", getpid());
    dump = open(name, O_CREAT | O_TRUNC | O_RDWR, 0600);
    struct { uint32_t magic, version, size, machine, pad, pid; uint64_t time, flags; } head =
        {0x4a695444, 1, 40, 62, 0, getpid(), now(CLOCK_MONOTONIC), 0};
    put(dump, &head, sizeof head);
    if (mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, dump, 0) == MAP_FAILED) exit(2);
}

static Made made(size_t offset, const unsigned char *code, size_t len) {
    memcpy(room + offset, code, len);
    __builtin___clear_cache((char *)room + offset, (char *)room + offset + len);
    return (Made)(room + offset);
}

__attribute__((noinline)) static void run(const char *name, Made code, long (*function)(long), uint64_t ms) {
    uint64_t begin = now(CLOCK_PROCESS_CPUTIME_ID), end = begin;
    while (end < begin + ms * 1000000) {
        code(100000, function);
        end = now(CLOCK_PROCESS_CPUTIME_ID);
    }
    printf("spent %s %llu\n", name, (unsigned long long)(end - begin) / 1000);
}

static void write_map(void) {
    char name[64], other[64];
    snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());
    snprintf(other, sizeof other, "/tmp/perf-%d.map.other", getpid());
    int is_link = !strcmp(mode, "link");
    FILE *file = fopen(is_link ? other : name, "w");
    fprintf(file, "%lx %zx stale\n", (long)room, sizeof LOOP);
    fprintf(file, "%lx %zx long Hot.loop(long)\n%lx %zx Cold::<lambda> \033[31m\n", (long)room, sizeof LOOP,
            (long)room + 0x1000, sizeof LOOP);
    fprintf(file, "%lx %zx Outer\n", (long)room + 0x2000, sizeof CALLS);
    fclose(file);
    if (is_link && symlink(other, name)) exit(2);
    if (!strcmp(mode, "foreign") && chown(name, 54321, 54321)) exit(2);
    struct timespec old[2] = {{1000000000, 0}, {1000000000, 0}};
    if (!strcmp(mode, "old")) utimensat(AT_FDCWD, name, old, 0);
}

int main(int argc, char **argv) {
    (void)argc;
    mode = argv[1];
    room = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!strcmp(mode, "many")) {
        // sub rsp, 8; call rsi; add rsp, 8; ret
        static const unsigned char CALL[16] = {0x48, 0x83, 0xec, 0x08, 0xff, 0xd6, 0x48, 0x83, 0xc4, 0x08, 0xc3};
        const size_t number = 200000;
        room = mmap(NULL, number * 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t n = 0; n < number; n++) made(n * 16, CALL, sizeof CALL);
        for (size_t n = 0; n < 2 * number; n++) ((Made)(room + n % number * 16))(n, helper);
        return 0;
    }
    Made hot = made(0, LOOP, sizeof LOOP);
    if (!strcmp(mode, "dump")) {
        begin_dump();
        loaded(room, sizeof LOOP, "first", 1);
        run("first", hot, helper, 300);
        loaded(room, sizeof LOOP, "second", 2);
        run("second", hot, helper, 500);
        Made there = made(0x3000, LOOP, sizeof LOOP);
        struct { uint32_t pid, tid; uint64_t vma, from, to, len, number; } body =
            {getpid(), getpid(), (uint64_t)there, (uint64_t)hot, (uint64_t)there, sizeof LOOP, 2};
        record(1, &body, sizeof body, NULL, NULL, 0);
        loaded(room, sizeof LOOP, "third", 3);
        run("second", there, helper, 200);
        run("third", hot, helper, 400);
        return 0;
    }
    Made cold = made(0x1000, LOOP, sizeof LOOP);
    Made outer = made(0x2000, CALLS, sizeof CALLS);
    if (strcmp(mode, "exit") && strcmp(mode, "none")) write_map();
    run("Hot", hot, helper, 600);
    run("Cold", cold, helper, 200);
    // The third argument is what the code calls.
    uint64_t begin = now(CLOCK_PROCESS_CPUTIME_ID), end = begin;
    while (end < begin + 300 * 1000000ull) {
        ((long (*)(long, void *, Made))outer)(100000, NULL, cold);
        end = now(CLOCK_PROCESS_CPUTIME_ID);
    }
    printf("spent Outer %llu\n", (unsigned long long)(end - begin) / 1000);
    if (!strcmp(mode, "exit")) write_map();
    return 0;
}
