// Functions that are called by several paths, with arguments and results that depend on the path. Each call of a function of which values are
// kept writes a line: the function, the path up to its caller, the argument and the result. The arguments of the program say what is done.
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define DEEPEST 64

static __thread const char *path[DEEPEST];
static __thread int depth;

// The program's own record of who is running.
#define ENTER(name) path[depth++] = name
#define LEAVE() depth--

static void note(const char *function, long argument, long result) {
  char line[4096];
  int len = snprintf(line, sizeof line, "%s\t", function);
  for (int i = 0; i < depth; i++)
    len += snprintf(line + len, sizeof line - len, "%s%s", i ? ";" : "", path[i]);
  len += snprintf(line + len, sizeof line - len, "\t%ld\t%ld\n", argument, result);
  if (write(1, line, len) != len)
    abort();
}

NOINLINE long ask(long size) {
  long result = size * 3 - 1;
  note("ask", size, result);
  return result;
}

NOINLINE long other(int n) {
  note("other", n, n + 1);
  return n + 1;
}

NOINLINE long small(int n) {
  ENTER("small");
  long sum = 0;
  for (int i = 0; i < n; i++)
    sum += ask(16 + i % 3);
  LEAVE();
  return sum;
}

NOINLINE long large(int n) {
  ENTER("large");
  long sum = ask(100000 + n);
  if (n > 0)
    sum += small(n);
  LEAVE();
  return sum;
}

// Recursion: calls itself, and between that the others.
NOINLINE long deep(int n) {
  ENTER("deep");
  long sum = ask(n) + other(n % 2);
  if (n > 0)
    sum += deep(n - 1);
  if (n == 2)
    sum += small(2);
  LEAVE();
  return sum;
}

NOINLINE long odd(int n);

NOINLINE long even(int n) {
  ENTER("even");
  long sum = ask(-n);
  if (n > 0)
    sum += odd(n - 1);
  LEAVE();
  return sum;
}

NOINLINE long odd(int n) {
  ENTER("odd");
  long sum = ask(n * 1000L);
  if (n > 0)
    sum += even(n - 1);
  LEAVE();
  return sum;
}

// A jump to the function: with -O2, this one's frame is gone when it runs. The caller leaves it.
NOINLINE long ends(int n) {
  ENTER("ends");
  return ask(n + 50);
}

NOINLINE long ends_twice(int n) {
  ENTER("ends_twice");
  return ends(n);
}

NOINLINE long tails(int n) {
  ENTER("tails");
  int known = depth;
  long sum = 0;
  for (int i = 0; i < n; i++) {
    sum += ends(i);
    depth = known;
    sum += ends_twice(i);
    depth = known;
  }
  LEAVE();
  return sum;
}

static jmp_buf target;

NOINLINE long leaps(int n) {
  ENTER("leaps");
  long sum = ask(n);
  if (n == 0)
    longjmp(target, 1);
  sum += leaps(n - 1);
  LEAVE();
  return sum;
}

NOINLINE long jumps(int n) {
  ENTER("jumps");
  volatile int known = depth;
  volatile long sum = 0;
  for (volatile int i = 0; i < n; i++) {
    if (setjmp(target) == 0)
      sum += leaps(i);
    depth = known;
    sum += ask(7);
  }
  LEAVE();
  return sum;
}

NOINLINE int compare(const void *a, const void *b) {
  ENTER("compare");
  long left = *(const int *)a, right = *(const int *)b;
  ask(left - right);
  LEAVE();
  return left < right ? -1 : left > right;
}

// Calls by a library that is not hooked.
NOINLINE void sorts(void) {
  ENTER("sorts");
  int all[9] = {5, 3, 8, 1, 9, 2, 7, 4, 6};
  qsort(all, 9, sizeof *all, compare);
  LEAVE();
}

NOINLINE long all(int n) {
  ENTER("all");
  long sum = small(n) + large(n) + deep(3) + even(4);
  sorts();
  LEAVE();
  return sum;
}

NOINLINE void *thread(void *n) {
  ENTER("thread");
  all((int)(intptr_t)n);
  LEAVE();
  return NULL;
}

NOINLINE long right(int levels);

// As many paths as there are sequences of both functions, with --no-fold.
NOINLINE long left(int levels) {
  ENTER("left");
  long sum = levels ? left(levels - 1) + right(levels - 1) : ask(1);
  LEAVE();
  return sum;
}

NOINLINE long right(int levels) {
  ENTER("right");
  long sum = levels ? left(levels - 1) + right(levels - 1) : ask(2);
  LEAVE();
  return sum;
}

NOINLINE void many(int n) {
  ENTER("many");
  for (int i = 0; i < n; i++) {
    small(1);
    large(0);
  }
  LEAVE();
}

int main(int argc, char **argv) {
  ENTER("main");
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "all")) {
      all(5);
      all(2);
    } else if (!strcmp(argv[i], "jumps")) {
      jumps(4);
    } else if (!strcmp(argv[i], "tails")) {
      tails(6);
    } else if (!strcmp(argv[i], "many")) {
      many(300);
    } else if (!strcmp(argv[i], "forest")) {
      left(14);
    } else if (!strcmp(argv[i], "threads")) {
      pthread_t threads[4];
      for (intptr_t n = 0; n < 4; n++)
        pthread_create(&threads[n], NULL, thread, (void *)n);
      for (int n = 0; n < 4; n++)
        pthread_join(threads[n], NULL);
    } else if (!strcmp(argv[i], "fork")) {
      if (fork() == 0) {
        all(1);
        _exit(0);
      }
      wait(NULL);
      small(2);
    } else if (!strcmp(argv[i], "exec")) {
      execl("/proc/self/exe", "p", "all", NULL);
    } else if (!strcmp(argv[i], "orphan")) {
      // Who started this program is killed. Nobody may read the output any more.
      kill(getppid(), 9);
      freopen("orphan.log", "w", stdout);
      usleep(100000);
    } else if (!strcmp(argv[i], "killed")) {
      kill(getpid(), 9);
    }
  }
  return 0;
}
