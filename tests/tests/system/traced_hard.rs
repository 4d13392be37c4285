//! Traces of programs that make it hard: jumps out of handlers while a thread waits for room, seccomp, a gprofinject that is killed,
//! processes that wait for gprofinject's end, triggers without number.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use gprofinject_skip as skip;
use gprofinject_tests::place::{self, Place};
use gprofinject_tests::traced::{Line, lines, shown};
use gprofinject_tests::{run, tool};

gprofinject_tests::trials! {
    together:
        jumps_out_of_handlers_lose_at_most_their_own_events,
        handlers_in_which_threads_stand_still_lose_nothing,
        stopped_programs_lose_nothing,
        forks_leave_the_parents_calls_alone,
        nothing_is_lost_under_seccomp,
        children_do_not_wait_for_a_killed_gprofinject,
        processes_from_before_are_not_waited_for,
        triggers_without_number,
        no_memory_for_open_calls;
}

/// `fib(20)` makes 21,891 calls.
const FIB: &str = r#"
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
__attribute__((noinline)) static int fib(int n) { __asm__ volatile(""); return n < 2 ? 1 : fib(n - 1) + fib(n - 2); }
static void enter_seccomp(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) abort();
}
int main(int argc, char **argv) {
    switch (argv[1][0]) {
    case 's':
        enter_seccomp();
        int sum = fib(20);
        if (sum == 10946) write(1, "right\n", 6);
        syscall(SYS_exit_group, 7);
    case 'k':
        kill(getppid(), SIGKILL);
        for (int i = 0; i < 20; i++) {
            if (fork() == 0) _exit(fib(24) != 75025);
            int status;
            wait(&status);
            if (status) abort();
        }
        puts("right");
        return 0;
    default:
        printf("%d\n", fib(20));
        return 3;
    }
}
"#;

fn stats(place: &Place) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(place.path("stats")).unwrap()).unwrap()
}

/// Runs gprofinject with `--trace trace` and `--stats=stats`, and returns the calls that were counted, the calls of the trace, and the
/// events that it lacks.
fn counted_traced_lost(place: &Place, options: &[&str], program: &[&str], status: i32) -> [u64; 3] {
    let outcome = place.run(&[&["-q", "--stats=stats", "--trace", "trace"], options, program].concat());
    assert_eq!(outcome.code(), status, "{options:?}: {}", outcome.stderr_text());
    let stats = stats(place);
    [&stats["calls"], &stats["trace"]["calls"], &stats["trace"]["lost"]].map(|number| number.as_u64().unwrap())
}

fn sh(place: &Place, script: &str) -> run::Outcome {
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("G", tool::gprofinject().unwrap()).current_dir(place.folder.path());
    place::finish(command)
}

fn jumps_out_of_handlers_lose_at_most_their_own_events() {
    /// Makes calls without a pause, of which a signal handler leaves some ten thousand times a second.
    const JUMPING: &str = r#"
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
static sigjmp_buf env;
static volatile int ready;
static volatile long jumps;
__attribute__((noinline)) static int leaf(int x) { __asm__ volatile("" : "+r"(x)); return x; }
__attribute__((noinline)) static int calls(int n) { return n ? calls(n - 1) + leaf(n) : 0; }
static void handler(int signal) { if (ready && leaf(signal)) siglongjmp(env, 1); }
int main(int argc, char **argv) {
    signal(SIGALRM, handler);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    struct itimerspec often = {{0, 100000}, {0, 100000}}, never = {0};
    if (timer_create(CLOCK_MONOTONIC, &event, &timer)) abort();
    timer_settime(timer, 0, &often, NULL);
    if (sigsetjmp(env, 1)) jumps++;
    ready = 1;
    while (jumps < atoi(argv[1])) calls(50);
    ready = 0;
    timer_settime(timer, 0, &never, NULL);
    return 5;
}
"#;
    const JUMPS: u64 = 5000;
    let place = Place::new();
    place.c("prog", JUMPING, &["-O1", "-fno-optimize-sibling-calls"]);
    let [counted, traced, lost] =
        counted_traced_lost(&place, &[], &["./prog", &JUMPS.to_string()], 5);
    // A jump leaves at most one call that was counted and whose event was to be written, and one of the handler's.
    assert!(counted > 100 * JUMPS, "{counted}");
    assert!(lost <= 2 * JUMPS && counted - traced <= 2 * JUMPS, "{counted} calls, {traced} traced, {lost} lost");
}

/// A signal comes while a gate writes an event, and its handler makes calls and then sleeps for longer than a reader would wait for
/// that event if it went by the clock.
fn handlers_in_which_threads_stand_still_lose_nothing() {
    const SLEEPING: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#define THREADS 16
static volatile int over;
static void nap(long ms) { struct timespec t = {0, ms * 1000000}; while (nanosleep(&t, &t)) {} }
__attribute__((noinline)) static int leaf(int x) { __asm__ volatile("" : "+r"(x)); return x; }
__attribute__((noinline)) static int calls(int n) { return n ? calls(n - 1) + leaf(n) : 0; }
static void handler(int signal) { leaf(signal); nap(150); leaf(signal); }
static void *thread(void *arg) { while (!over) calls(20); return arg; }
int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    signal(SIGUSR1, handler);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, thread, 0);
    for (int round = 0; round < atoi(argv[1]); round++) {
        nap(180);
        for (int i = 0; i < THREADS; i++) pthread_kill(threads[i], SIGUSR1);
    }
    over = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    return 5;
}
"#;
    let place = Place::new();
    place.c("prog", SLEEPING, &["-O1", "-pthread", "-fno-optimize-sibling-calls"]);
    // One signal of 60 comes in the midst of a gate that has taken a slot.
    let [counted, traced, lost] = counted_traced_lost(&place, &["--rate=0"], &["./prog", "30"], 5);
    assert!(counted > 100_000, "{counted}");
    assert_eq!((traced, lost), (counted, 0));
}

/// The program alone is stopped at any moment, and continued. gprofinject stops with it, and has to go on with it too.
fn stopped_programs_lose_nothing() {
    const RUNNING: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) static int leaf(int x) { __asm__ volatile("" : "+r"(x)); return x; }
__attribute__((noinline)) static int calls(int n) { return n ? calls(n - 1) + leaf(n) : 0; }
int main(void) {
    char byte;
    printf("%d\n", getpid());
    fflush(stdout);
    fcntl(0, F_SETFL, O_NONBLOCK);
    while (read(0, &byte, 1) != 0) for (int i = 0; i < 100; i++) calls(20);
    return 5;
}
"#;
    let place = Place::new();
    place.c("prog", RUNNING, &["-O1", "-fno-optimize-sibling-calls"]);
    let options = ["-q", "--rate=0", "--libs=none", "--stats=stats", "--trace", "trace"];
    let mut command = tool::command(&options, &place.path("gmon.out"), &place.path("prog"), &[]).unwrap();
    command.current_dir(place.path("")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut injector = command.spawn().unwrap();
    let said = BufReader::new(injector.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let send = |signal: &str, pid: &str| {
        assert!(Command::new("kill").args([signal, pid]).status().unwrap().success(), "{signal} {pid}");
    };
    for round in 0..15 {
        std::thread::sleep(Duration::from_millis(7 * round));
        send("-STOP", &said);
        std::thread::sleep(Duration::from_millis(300));
        send("-CONT", &said);
    }
    // A thread that waits for a stopped gprofinject gives up after two seconds.
    std::thread::sleep(Duration::from_millis(2500));
    drop(injector.stdin.take());
    std::thread::sleep(Duration::from_millis(500));
    // One that stands still would never end.
    send("-CONT", &injector.id().to_string());
    assert_eq!(injector.wait().unwrap().code(), Some(5));
    let stats = stats(&place);
    let [counted, traced, lost] =
        [&stats["calls"], &stats["trace"]["calls"], &stats["trace"]["lost"]].map(|number| number.as_u64().unwrap());
    assert!(counted > 500_000, "{counted}");
    assert_eq!((traced, lost), (counted, 0));
}

/// Between a fork and the agent's first routine in the child, both processes have the same thread block. With the C library hooked,
/// both make calls then, and without it the parent does.
fn forks_leave_the_parents_calls_alone() {
    const FORKING: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline)) static int leaf(int x) { __asm__ volatile("" : "+r"(x)); return x; }
__attribute__((noinline)) static int parents(int n) { return n ? parents(n - 1) + leaf(n) : 0; }
__attribute__((noinline)) static int childs(int n) { return n ? childs(n - 1) + leaf(n) : 0; }
static void *thread(void *arg) { for (;;) pause(); return arg; }
int main(int argc, char **argv) {
    pthread_t other;
    pthread_create(&other, 0, thread, 0);
    for (int i = 0; i < atoi(argv[1]); i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(childs(3) != 6);
        parents(2000);
        int status;
        if (waitpid(pid, &status, 0) != pid || status) abort();
    }
    return 5;
}
"#;
    const FORKS: usize = 100;
    let place = Place::new();
    place.c("prog", FORKING, &["-O1", "-pthread", "-fno-optimize-sibling-calls"]);
    for libs in ["none", "all"] {
        let options = ["--rate=0", "--libs", libs];
        // The harness ends what takes longer than 30 seconds.
        let [counted, traced, lost] =
            counted_traced_lost(&place, &options, &["./prog", &FORKS.to_string()], 5);
        assert_eq!(lost, 0, "{libs}");
        assert!(traced <= counted && (libs == "all" || traced == counted), "{libs}: {traced} of {counted}");
        let mut depths: BTreeMap<(u32, usize), usize> = BTreeMap::new();
        let (mut main, mut inner) = (0, 0);
        for Line { tid, depth, text } in lines(&shown(&place, "trace", &["--fields", "tid"])) {
            match text.split('(').next().unwrap_or_default() {
                // Of a child, it is an inherited call.
                "main" => main = depth,
                "parents" => inner += 1,
                "childs" => *depths.entry((tid, depth)).or_default() += 1,
                _ => {}
            }
        }
        assert_eq!(inner, FORKS * 2001, "{libs}");
        assert_eq!(depths.len(), FORKS * 4, "{libs}");
        for ((tid, depth), count) in depths {
            // With the C library, main is not the outermost function.
            let is_right = (1..=4).contains(&(depth - main)) && count == 1;
            assert!(is_right, "{libs}: {tid}: {count} at {depth}, main is at {main}");
        }
    }
}

fn nothing_is_lost_under_seccomp() {
    let place = Place::new();
    place.c("prog", FIB, &["-O1"]);
    for args in [&[][..], &["--args", "fib@arg1/i32"]] {
        let [counted, traced, lost] = counted_traced_lost(&place, args, &["./prog", "s"], 7);
        assert!(counted > 21_891, "{counted}");
        assert_eq!((traced, lost), (counted, 0), "{args:?}");
    }
}

fn children_do_not_wait_for_a_killed_gprofinject() {
    let place = Place::new();
    place.c("prog", FIB, &["-O1"]);
    // The harness ends what takes longer than 30 seconds. Each of the 20 children fills its ring.
    let outcome = sh(&place, "\"$G\" -q --trace trace ./prog k | cat");
    assert_eq!(outcome.stdout_text(), "right\n", "{}", outcome.stderr_text());
}

fn processes_from_before_are_not_waited_for() {
    let place = Place::new();
    place.c("prog", FIB, &["-O1"]);
    // The shell becomes gprofinject, so `cat` is its child, and ends when gprofinject closes the pipe.
    let outcome = sh(&place, "mkfifo pipe; cat pipe > trace & exec \"$G\" -q --trace pipe ./prog n");
    assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (3, "10946\n"), "{}", outcome.stderr_text());
}

fn triggers_without_number() {
    let place = Place::new();
    place.c("prog", FIB, &["-O1"]);
    let outcome = place.run(&["--trace", "trace", "--trace-size", "1", "--trace-trigger", "fib", "./prog", "n"]);
    assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (3, "10946\n"), "{}", outcome.stderr_text());
    assert!(place.path("trace.100").exists() && !place.path("trace.101").exists());
    let text = outcome.stderr_text();
    assert!(text.contains("100 files have been written; further calls"), "{text}");
    // The first one, too, says how long a tick of the clock is.
    let mut command = Command::new(tool::gmon().unwrap());
    command.arg("trace").arg(place.path("trace"));
    let shown = place::finish(command);
    assert!(shown.stdout_text().contains("fib("), "{}", shown.stdout_text());
    assert_eq!(shown.stderr_text(), "");
}

fn no_memory_for_open_calls() {
    /// Half a million calls that are open at the same time, each of which needs a record.
    const DEEP: &str = "#include <stdio.h>
        __attribute__((noinline)) static long deep(long n) { __asm__ volatile(\"\"); return n ? deep(n - 1) + 1 : 0; }
        int main(void) { printf(\"%ld\\n\", deep(500000)); return 6; }";
    if !skip::have("unshare") {
        return skip::skipped("traced_hard: no memory", "no unshare");
    }
    let place = Place::new();
    place.c("prog", DEEP, &["-O1", "-fno-optimize-sibling-calls"]);
    // The name of the run folder is too long for that of a memory file, so the files are in the folder, which has little room. The
    // harness ends what takes longer than 30 seconds.
    let outcome = sh(
        &place,
        "ulimit -s 200000; unshare -rm sh -c 'mount -t tmpfs -o size=8m tmpfs /dev/shm || exit 77; \
         export XDG_RUNTIME_DIR=/dev/shm/$(printf %0240d 0); mkdir -m 700 $XDG_RUNTIME_DIR; \
         exec \"$G\" -q --rate=0 --stats=stats --trace trace ./prog'",
    );
    if outcome.status.code() == Some(77) || outcome.stderr_text().starts_with("unshare:") {
        return skip::skipped("traced_hard: no memory", "no namespaces");
    }
    assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (6, "500000\n"), "{}", outcome.stderr_text());
    // Those that were not traced are counted all the same, and there are some, so memory was short.
    let stats = stats(&place);
    let [counted, traced] = [&stats["calls"], &stats["trace"]["calls"]].map(|number| number.as_u64().unwrap());
    assert!(counted > 500_000 && traced > 1000 && traced < counted, "{counted} counted, {traced} traced");
}
