//! Defects of the agent itself: after a panic the program behaves as it does alone, the panic is reported,
//! and what was counted is kept.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use gprofinject_abi::region::{RegionHeader, RegionOrders, State, Trouble};
use gprofinject_abi::{PLAN_SUFFIX, REGION_SUFFIX, RUN_VARIABLE};
use gprofinject_tests::place::{LIMIT, Place, finish};
use zerocopy::{FromBytes, IntoBytes};

gprofinject_tests::trials! {
    together: the_program_goes_on_after_a_panic;
}

/// A program that enters the agent in every way. With an argument, another thread waits meanwhile, so that
/// the program's text cannot be restored. If there is a file "wait", the program first prints "ready" and
/// waits until the file is removed.
const ALL_WAYS: &str = r#"
#include <pthread.h>
#include <setjmp.h>
#include <stdexcept>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define HOOKED __attribute__((noipa))
HOOKED static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
HOOKED static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
HOOKED static int sorted(int n) {
    int values[200];
    for (int i = 0; i < 200; i++) values[i] = i * 7919 % 200;
    qsort(values, 200, sizeof *values, compare);
    return values[n];
}
HOOKED static int last(int n) { return n + 1; }
HOOKED static int tail(int n) { return last(n + 1); }
HOOKED static void thrower(int n) { if (n == 0) throw std::runtime_error("thrown"); thrower(n - 1); }
HOOKED static int caught(void) {
    try { thrower(10); } catch (const std::exception &e) { return e.what()[0]; }
    return 0;
}
static jmp_buf place;
HOOKED static void jumps(int n) { if (n == 0) longjmp(place, 5); jumps(n - 1); }
HOOKED static int jumped(void) { int n = setjmp(place); if (n == 0) jumps(10); return n; }
static ucontext_t outside, inside;
static int total;
HOOKED static void coroutine(void) {
    for (int i = 0; i < 3; i++) { total += fib(5); swapcontext(&inside, &outside); }
}
HOOKED static int resumed(void) {
    static char stack[1 << 16];
    getcontext(&inside);
    inside.uc_stack.ss_sp = stack;
    inside.uc_stack.ss_size = sizeof stack;
    inside.uc_link = &outside;
    makecontext(&inside, coroutine, 0);
    for (int i = 0; i < 3; i++) swapcontext(&outside, &inside);
    return total;
}
HOOKED static void *threaded(void *result) { *(int *)result = fib(12); return 0; }
HOOKED static void *waits(void *ready) { pthread_barrier_wait((pthread_barrier_t *)ready); pause(); return 0; }
HOOKED static int forked(void) {
    fflush(stdout);
    if (fork() == 0) _exit(fib(10) + sorted(3));
    int status = 0;
    wait(&status);
    return WEXITSTATUS(status);
}
int main(int argc, char **argv) {
    pthread_t thread;
    if (!access("wait", F_OK)) fclose(fopen("ready", "w"));
    while (!access("wait", F_OK)) usleep(1000);
    if (argc > 1) {
        pthread_barrier_t ready;
        pthread_barrier_init(&ready, 0, 2);
        pthread_create(&thread, 0, waits, &ready);
        pthread_barrier_wait(&ready);
    }
    for (int round = 0; round < 3; round++) {
        int result = 0;
        printf("%d %d %d %d %d ", fib(15), sorted(100), tail(round), caught(), jumped());
        pthread_create(&thread, 0, threaded, &result);
        pthread_join(thread, 0);
        printf("%d %d %d\n", resumed(), result, forked());
        fflush(stdout);
        if (system("echo executed") != 0) return 1;
    }
    return 7;
}
"#;

/// Returns the agent library that panics at the place which an environment variable names (`build.rs` builds
/// it).
fn library() -> PathBuf {
    PathBuf::from(env!("GPROFINJECT_PANICKING_AGENT"))
}

/// The plan of the program, and the orders for its region file with the file's length, taken from a run of
/// gprofinject.
struct Prepared {
    plan: Vec<u8>,
    orders: RegionOrders,
    len: u64,
}

impl Prepared {
    fn new(place: &Place, hooks: &str) -> Prepared {
        fs::write(place.path("wait"), "").unwrap();
        let mut command = place.command(&["-q", hooks, "./ways"]);
        command.env("XDG_RUNTIME_DIR", place.folder.path()).stdout(Stdio::null());
        let mut run = command.spawn().unwrap();
        let start = Instant::now();
        while !place.path("ready").exists() {
            assert!(start.elapsed() < LIMIT, "the program does not start");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let mut entries = fs::read_dir(place.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let folder = entries.find(|path| path.join(format!("0{PLAN_SUFFIX}")).exists()).unwrap();
        let plan = fs::read(folder.join(format!("0{PLAN_SUFFIX}"))).unwrap();
        let region = folder.join(format!("0{REGION_SUFFIX}"));
        let len = fs::metadata(&region).unwrap().len();
        let orders = header(&region).orders;
        fs::remove_file(place.path("wait")).unwrap();
        assert_eq!(run.wait().unwrap().code(), Some(7));
        fs::remove_file(place.path("ready")).unwrap();
        Prepared { plan, orders, len }
    }

    /// Returns a run folder with these files.
    fn folder(&self) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(format!("0{PLAN_SUFFIX}")), &self.plan).unwrap();
        let region = File::create(folder.path().join(format!("0{REGION_SUFFIX}"))).unwrap();
        region.write_all_at(self.orders.as_bytes(), 0).unwrap();
        region.set_len(self.len).unwrap();
        folder
    }
}

fn header(region: &Path) -> RegionHeader {
    let mut bytes = [0; size_of::<RegionHeader>()];
    File::open(region).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    RegionHeader::read_from_bytes(&bytes).unwrap()
}

fn file_of(header: &RegionHeader) -> String {
    let name = header.panic_file.iter().flat_map(|word| word.to_le_bytes()).take_while(|&byte| byte != 0);
    String::from_utf8(name.collect()).unwrap()
}

fn the_program_goes_on_after_a_panic() {
    let (place, library) = (Place::new(), library());
    place.compile("g++", "ways", ALL_WAYS, &["-xc++", "-pthread"]).unwrap();
    for hooks in ["--hooks=both", "--hooks=entry"] {
        let prepared = Prepared::new(&place, hooks);
        for threads in [&[][..], &["and", "threads"]] {
            let mut alone = Command::new(place.path("ways"));
            alone.args(threads).current_dir(place.folder.path());
            let alone = finish(alone);
            assert_eq!(alone.code(), 7, "{}", alone.stderr_text());
            for (provoked, state) in [
                ("nothing", State::Armed),
                ("setup", State::Refused),
                ("rare", State::Armed),
                ("fork", State::Armed),
                ("execute", State::Armed),
            ] {
                let folder = prepared.folder();
                let mut command = Command::new(place.path("ways"));
                command.args(threads).current_dir(place.folder.path());
                command.env(RUN_VARIABLE, folder.path().join("0")).env("GPROFINJECT_PROVOKE", provoked);
                command.env("LD_PRELOAD", &library);
                let what = format!("{provoked} {hooks} {threads:?}");
                let outcome = finish(command);
                let header = header(&folder.path().join(format!("0{REGION_SUFFIX}")));
                assert_eq!(outcome.stderr_text(), alone.stderr_text(), "{what}");
                assert_eq!(
                    (outcome.code(), outcome.stdout_text()),
                    (7, alone.stdout_text()),
                    "{what}: {header:?}"
                );
                assert_eq!(header.state, state.code(), "{what}: {header:?}");
                let panicked = header.trouble == Trouble::Panic.code();
                assert_eq!(panicked, provoked != "nothing", "{what}: {header:?}");
                let named = file_of(&header).ends_with("program/provoke.rs") && header.errno > 0;
                assert_eq!(named, panicked, "{what}: {header:?}");
            }
        }
    }
}
