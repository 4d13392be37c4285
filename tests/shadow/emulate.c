/* Emulates the shadow stack of the processor: executes a program step by step, keeps its own stack of return addresses, and reports every
 * return that does not lead to where the last call has said.
 *
 *     emulate REPORT PROGRAM [ARGUMENT...]
 *
 * Each line of REPORT is "disagree PID: ret at ADDRESS leads to ADDRESS, not ADDRESS" or "abandon PID: COUNT at ADDRESS": a return above
 * COUNT frames that have not returned, which a processor allows only after the program has moved its shadow stack itself, as longjmp does.
 * The last line is "returns COUNT". Status 1 means that the program could not be executed.
 *
 * As with a processor, a new thread begins with an empty shadow stack, a forked child with its parent's, and an executed program with
 * an empty one; a signal handler returns to its restorer, and its end takes the shadow stack back to where the signal has come. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

/* A return address on a shadow stack: where it is on the program's stack, and what it is. `address` 0: a signal handler began here. */
struct frame {
    unsigned long slot, address;
};
/* The memory of a shadow stack. A child of vfork, which has its parent's memory, shares it. */
struct store {
    struct frame *frames;
    long room, users;
};
struct thread {
    pid_t id;
    struct store *store;
    long used;
    struct user_regs_struct before;
    int signal, begun;
};
static struct thread *threads;
static long count, returns;
static FILE *report;

static struct thread *find(pid_t id) {
    for (long i = 0; i < count; i++)
        if (threads[i].id == id) return &threads[i];
    return NULL;
}

static struct store *store(void) {
    struct store *new = calloc(1, sizeof *new);
    if (!new) abort();
    new->users = 1;
    return new;
}

static void leave(struct store *store) {
    if (--store->users) return;
    free(store->frames);
    free(store);
}

static struct thread *add(pid_t id) {
    struct thread *known = find(id);
    if (known) return known;
    threads = realloc(threads, (count + 1) * sizeof *threads);
    if (!threads) abort();
    threads[count] = (struct thread){.id = id, .store = store()};
    return &threads[count++];
}

static void drop(pid_t id) {
    struct thread *thread = find(id);
    if (!thread) return;
    leave(thread->store);
    *thread = threads[--count];
}

static void push(struct thread *thread, unsigned long slot, unsigned long address) {
    struct store *store = thread->store;
    if (thread->used == store->room) {
        store->room = store->room ? 2 * store->room : 1024;
        store->frames = realloc(store->frames, store->room * sizeof *store->frames);
        if (!store->frames) abort();
    }
    store->frames[thread->used++] = (struct frame){slot, address};
}

static int load(pid_t id, unsigned long at, void *to, size_t len) {
    struct iovec local = {to, len}, remote = {(void *)at, len};
    return process_vm_readv(id, &local, 1, &remote, 1, 0) == (ssize_t)len;
}

static unsigned long word(pid_t id, unsigned long at) {
    unsigned long value = 0;
    return load(id, at, &value, sizeof value) ? value : 0;
}

enum kind { OTHER, CALL, RET, SYSCALL };

static enum kind decode(pid_t id, unsigned long at) {
    unsigned char code[16] = {0};
    /* The page may end within the 16 bytes. */
    if (!load(id, at, code, sizeof code) && !load(id, at, code, 16 - ((at + 15) & 0xfff) - 1)) return OTHER;
    int i = 0;
    while (i < 8 && (code[i] == 0x66 || code[i] == 0x67 || code[i] == 0xf2 || code[i] == 0xf3 || code[i] == 0x2e || code[i] == 0x3e
                     || (code[i] & 0xf0) == 0x40))
        i++;
    if (code[i] == 0xe8 || (code[i] == 0xff && (code[i + 1] & 0x38) == 0x10)) return CALL;
    if (code[i] == 0xc3 || code[i] == 0xc2) return RET;
    if (code[i] == 0x0f && code[i + 1] == 0x05) return SYSCALL;
    return OTHER;
}

static void ret(struct thread *thread, const struct user_regs_struct *after) {
    unsigned long slot = thread->before.rsp;
    long abandoned = 0;
    returns++;
    while (thread->used && thread->store->frames[thread->used - 1].slot < slot) {
        thread->used--;
        abandoned++;
    }
    if (abandoned) fprintf(report, "abandon %d: %ld at %#llx\n", thread->id, abandoned, thread->before.rip);
    struct frame top = thread->used ? thread->store->frames[--thread->used] : (struct frame){0, 0};
    if (top.address == after->rip && top.slot == slot) return;
    fprintf(report, "disagree %d: ret at %#llx leads to %#llx, not %#lx\n", thread->id, thread->before.rip, after->rip, top.address);
    /* The frame of this return, or a deeper one, is still there. */
    while (thread->used && thread->store->frames[thread->used - 1].slot <= slot) thread->used--;
}

/* What the last step of a thread has done. */
static void stepped(struct thread *thread) {
    struct user_regs_struct after;
    if (ptrace(PTRACE_GETREGS, thread->id, 0, &after)) return;
    const struct user_regs_struct *before = &thread->before;
    if (thread->begun) {
        if (thread->signal && after.rsp + 256 < before->rsp && after.rdi == (unsigned long)thread->signal) {
            push(thread, after.rsp, 0);
            push(thread, after.rsp, word(thread->id, after.rsp));
        } else {
            switch (decode(thread->id, before->rip)) {
            case CALL:
                if (after.rip != before->rip && after.rsp == before->rsp - 8) push(thread, after.rsp, word(thread->id, after.rsp));
                break;
            case RET:
                if (after.rip != before->rip) ret(thread, &after);
                break;
            case SYSCALL:
                if (before->rax == 15)
                    while (thread->used && thread->store->frames[--thread->used].address) {}
                break;
            default:
                break;
            }
        }
    }
    thread->before = after;
    thread->begun = 1;
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: emulate REPORT PROGRAM [ARGUMENT...]\n"), 1;
    report = fopen(argv[1], "we");
    if (!report) return perror(argv[1]), 1;
    pid_t first = fork();
    if (first == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        execv(argv[2], argv + 2);
        perror(argv[2]);
        _exit(127);
    }
    int status, result = 0;
    if (waitpid(first, &status, 0) != first || !WIFSTOPPED(status)) return 1;
    ptrace(PTRACE_SETOPTIONS, first, 0,
           PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL);
    add(first);
    ptrace(PTRACE_CONT, first, 0, 0);
    for (;;) {
        pid_t id = waitpid(-1, &status, __WALL);
        if (id < 0) {
            if (errno == EINTR) continue;
            break;
        }
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (id == first) result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            if (WIFSIGNALED(status)) fprintf(report, "killed %d: signal %d\n", id, WTERMSIG(status));
            drop(id);
            continue;
        }
        struct thread *thread = add(id);
        int sig = WSTOPSIG(status), event = status >> 16, deliver = 0;
        if (event == PTRACE_EVENT_EXEC) {
            leave(thread->store);
            thread->store = store();
            thread->used = 0;
            thread->begun = 0;
        } else if (event) {
            unsigned long child = 0;
            ptrace(PTRACE_GETEVENTMSG, id, 0, &child);
            struct thread *new = add(child);
            thread = find(id);
            if (event == PTRACE_EVENT_FORK)
                for (long i = 0; i < thread->used; i++) push(new, thread->store->frames[i].slot, thread->store->frames[i].address);
            if (event == PTRACE_EVENT_VFORK) {
                leave(new->store);
                new->store = thread->store;
                new->store->users++;
                new->used = thread->used;
            }
        } else if (sig == SIGTRAP) {
            siginfo_t info;
            if (!ptrace(PTRACE_GETSIGINFO, id, 0, &info) && info.si_code <= 0) deliver = sig;
            stepped(thread);
        } else if (sig == SIGSTOP && !thread->begun) {
            /* A new thread or child. */
            stepped(thread);
        } else {
            stepped(thread);
            deliver = sig;
        }
        thread->signal = deliver;
        if (!event) ptrace(PTRACE_GETREGS, id, 0, &thread->before);
        ptrace(PTRACE_SINGLESTEP, id, 0, deliver);
    }
    fprintf(report, "returns %ld\n", returns);
    fclose(report);
    return result;
}
