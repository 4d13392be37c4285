// Frames that are left, and threads that are made, while hooks are paused. Reads lines with one letter and a number:
//
// c N   Calls own N times.
// t N   Makes N threads one after the other, which call own ten times each.
// j     Prints "waiting" in three frames, waits for a line, and leaves the frames by longjmp.
// u     The same by a forced unwinding, which runs their clean-ups.
// b     The same, but counts the frames by _Unwind_Backtrace and returns.
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unwind.h>
#define OPAQUE __attribute__((noinline, noclone))

static volatile int sink, cleaned, frames, ended;
static jmp_buf base;
static uintptr_t limit;
static struct _Unwind_Exception exception;
static char line[100];

OPAQUE void own(const char *number) { sink += atol(number); }

static void clean(int *by) { cleaned += *by; }

static void ready(const char *what) {
    puts(what);
    fflush(stdout);
}

static _Unwind_Reason_Code stop(int version, _Unwind_Action actions, _Unwind_Exception_Class class,
                                struct _Unwind_Exception *thrown, struct _Unwind_Context *context, void *argument) {
    if (actions & _UA_END_OF_STACK) ended++;
    if (actions & _UA_END_OF_STACK || _Unwind_GetCFA(context) > limit) longjmp(base, 1);
    return _URC_NO_REASON;
}

static _Unwind_Reason_Code count(struct _Unwind_Context *context, void *argument) {
    frames++;
    return _URC_NO_REASON;
}

OPAQUE static void inner(int way) {
    ready("waiting");
    fgets(line, sizeof line, stdin);
    own("1");
    if (way == 'j') longjmp(base, 1);
    if (way == 'u') _Unwind_ForcedUnwind(&exception, stop, 0);
    _Unwind_Backtrace(count, 0);
}

OPAQUE static void middle(int way) {
    int by __attribute__((cleanup(clean))) = 1;
    inner(way);
    own("2");
}

OPAQUE static void outer(int way) {
    int by __attribute__((cleanup(clean))) = 10;
    middle(way);
    own("3");
}

OPAQUE static void leave(int way) {
    limit = (uintptr_t)__builtin_frame_address(0);
    cleaned = frames = ended = 0;
    if (!setjmp(base)) outer(way);
    printf("%c cleaned %d, %d frames, %d ends\n", way, cleaned, frames, ended);
}

static void *work(void *argument) {
    for (int i = 0; i < 10; i++) own("4");
    return argument;
}

int main(void) {
    ready("ready");
    while (fgets(line, sizeof line, stdin)) {
        int way = line[0], n = atoi(line + 1);
        pthread_t thread;
        if (way == 'c')
            for (int i = 0; i < n; i++) own("5");
        else if (way == 't')
            for (int i = 0; i < n; i++) {
                pthread_create(&thread, 0, work, 0);
                pthread_join(thread, 0);
            }
        else
            leave(way);
        ready("done");
    }
    return 3;
}
