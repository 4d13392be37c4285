/* Calls functions with values of all kinds, and writes for each call its own log: function, argument, caller, value.
   The numbers on the command line say what is done: see main. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define F __attribute__((noinline, noclone))
#define KEEP __asm__ volatile("" ::: "memory")

/* Which function makes the next call: no part of a call's arguments. */
static __thread const char *caller;
#define BY(call) (caller = __func__, (call))

/* Each thread writes to memory of its own, which is printed at the end. */
struct log { char *text; size_t len, room; };
static __thread struct log own;

static void note(const char *function, const char *argument, const char *by, const char *format, ...) {
  char value[512];
  va_list list;
  va_start(list, format);
  vsnprintf(value, sizeof value, format, list);
  va_end(list);
  if (own.room - own.len < 1024) own.text = realloc(own.text, own.room = own.room ? own.room * 2 : 1 << 16);
  own.len += sprintf(own.text + own.len, "%s\t%s\t%s\t%s\n", function, argument, by, value);
}
static void flush(void) {
  size_t done = 0;
  while (done < own.len) done += write(1, own.text + done, own.len - done);
  own.len = 0;
}
#define NOTE(argument, format, value) note(__func__, argument, by, format, value)
#define RESULT(format, value) do { NOTE("retval", format, value); return value; } while (0)

F uint8_t u8(uint8_t x) { const char *by = caller; NOTE("arg1", "%u", x); RESULT("%u", (uint8_t)(x + 3)); }
F int8_t i8(int8_t x) { const char *by = caller; NOTE("arg1", "%d", x); RESULT("%d", (int8_t)(x * 5)); }
F uint16_t u16(uint16_t x) { const char *by = caller; NOTE("arg1", "%u", x); RESULT("%u", (uint16_t)(x * 77)); }
F int16_t i16(int16_t x) { const char *by = caller; NOTE("arg1", "%d", x); RESULT("%d", (int16_t)(x * 99)); }
F uint32_t u32(uint32_t x) { const char *by = caller; NOTE("arg1", "%u", x); RESULT("%u", x * 2654435761u); }
F int32_t i32(int32_t x) { const char *by = caller; NOTE("arg1", "%d", x); RESULT("%d", -x); }
F uint64_t u64(uint64_t x) { const char *by = caller; NOTE("arg1", "%" PRIu64, x); RESULT("%" PRIu64, x << 60 | x); }
F int64_t i64(int64_t x) { const char *by = caller; NOTE("arg1", "%" PRId64, x); RESULT("%" PRId64, x * 1000000007); }
F void *pointer(void *x) { const char *by = caller; NOTE("arg1", "%" PRIuPTR, (uintptr_t)x); RESULT("%" PRIuPTR, (void *)((uintptr_t)x + 16)); }
F double real(double x, float y) {
  const char *by = caller; NOTE("fparg1", "%.17g", x); NOTE("fparg2", "%.9g", y); RESULT("%.17g", x / 3);
}
F const char *text(const char *x) { const char *by = caller; NOTE("arg1", "%s", x); RESULT("%s", x + 1); }
F int64_t eight(int a, short b, char c, long d, int e, unsigned f, int64_t g, int64_t h) {
  const char *by = caller;
  NOTE("arg1", "%d", a); NOTE("arg2", "%d", b); NOTE("arg3", "%d", c); NOTE("arg4", "%ld", d); NOTE("arg5", "%d", e);
  NOTE("arg6", "%u", f); NOTE("stack+1", "%" PRId64, g); NOTE("stack+2", "%" PRId64, h);
  RESULT("%" PRId64, a + b + c + d + e + f + g + h);
}
F int deep(int n) {
  const char *by = caller; NOTE("arg1", "%d", n); int sum = n == 0 ? 0 : BY(deep(n - 1)) + 1; RESULT("%d", sum);
}

static jmp_buf out;
F int risky(int n) { const char *by = caller; NOTE("arg1", "%d", n); if (n % 3 == 0) longjmp(out, 1); RESULT("%d", n * 2); }
F int around(int n) { KEEP; int got = BY(risky(n)); KEEP; return got + 1; }

F uint64_t many(uint64_t x) { const char *by = caller; NOTE("arg1", "%" PRIu64, x); KEEP; return x; }

static volatile uint64_t in_handler[8], in_main[8];
F uint64_t shared(uint64_t x) { KEEP; return x ^ 1; }
F void handler(int signal) { (void)signal; for (int i = 0; i < 3; i++) { shared(4 + i); in_handler[4 + i]++; } }

/* A jump to a function, at -O2: its caller is the one that jumps. */
F int jumps(int n) { KEEP; caller = __func__; return i32(n); }
F int calls(int n) { KEEP; return BY(jumps(n)) + 1; }

F void all(int times) {
  static const char *words[] = {"", "a", "some words", "tab\there", "an \"odd\" one", "0123456789"};
  for (int i = 0; i < times; i++) {
    BY(u8(i * 7)); BY(i8(i * 7)); BY(u16(i * 300)); BY(i16(-i * 300)); BY(u32(i * 70000u)); BY(i32(i % 5 - 2));
    BY(u64((uint64_t)i << 40 | (i & 1))); BY(i64(-(int64_t)i << 33)); BY(pointer((void *)(0x1000 + 64l * (i % 9))));
    BY(real(i / 4.0, i * -0.5f)); BY(text(words[1 + i % 5]));
    BY(eight(i % 3, -i % 4, i % 2, -i, i, -1u - i, (int64_t)i << 35, -i));
    calls(i % 4);
  }
}
F void rare(void) { for (int i = 0; i < 20; i++) BY(i32(i32(i) * 2)); }

static void *thread(void *number) { all(100 + (int)(intptr_t)number); flush(); return 0; }

int main(int argc, char **argv) {
  for (int n = 1; n < argc; n++) {
    const char *what = argv[n];
    if (!strcmp(what, "all")) all(500);
    if (!strcmp(what, "rare")) rare();
    if (!strcmp(what, "deep")) { BY(deep(300)); BY(deep(3)); }
    if (!strcmp(what, "risky")) for (volatile int i = 0; i < 600; i++) if (!setjmp(out)) around(i % 20);
    if (!strcmp(what, "threads")) {
      pthread_t ids[4];
      for (intptr_t i = 0; i < 4; i++) pthread_create(&ids[i], 0, thread, (void *)i);
      for (int i = 0; i < 4; i++) pthread_join(ids[i], 0);
    }
    if (!strcmp(what, "fork")) {
      flush();
      if (!fork()) { all(50); flush(); _exit(0); }
      wait(0);
    }
    if (!strcmp(what, "many")) {
      uint64_t random = 88172645463325252;
      for (int i = 0; i < 40000; i++) {
        random ^= random << 13; random ^= random >> 7; random ^= random << 17;
        BY(many(i % 3 == 0 ? 7 : i % 5 == 0 ? 1 + i % 50 : random));
      }
    }
    if (!strcmp(what, "signals")) {
      signal(SIGALRM, handler);
      struct itimerval often = {{0, 100}, {0, 100}};
      setitimer(ITIMER_REAL, &often, 0);
      for (int i = 0; i < 3000000; i++) { shared(i & 3); in_main[i & 3]++; }
      memset(&often, 0, sizeof often);
      setitimer(ITIMER_REAL, &often, 0);
      for (int i = 0; i < 8; i++) printf("%d %" PRIu64 "\n", i, in_main[i] + in_handler[i]);
      fflush(stdout);
    }
    if (!strcmp(what, "killed")) { flush(); raise(SIGKILL); }
  }
  flush();
}
