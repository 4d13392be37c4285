//! `gmon paths --waits`: who waits for what, of a program that takes the time of its own waits.

use std::collections::BTreeMap;

use gprofinject_tests::place::Place;
use gprofinject_tests::tool;
use serde_json::Value;

gprofinject_tests::trials! {
    together:
        who_waits_for_which_lock,
        what_cannot_be_known_is_said;
}

/// Three threads contend for two locks, of which one is held five times as long as the other. Each wait is timed by the program, which
/// prints the sums by function.
const LOCKS: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#define OPAQUE __attribute__((noipa))
static pthread_mutex_t first = PTHREAD_MUTEX_INITIALIZER, second = PTHREAD_MUTEX_INITIALIZER;
static volatile long sink;
static __thread long waited[3];
static long sums[3];
static inline long now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000L + t.tv_nsec; }
#define TIMED(n, call) do { long start_ = now(); call; waited[n] += now() - start_; } while (0)
OPAQUE void hold_long(void) {
    TIMED(0, pthread_mutex_lock(&first); usleep(10000));
    pthread_mutex_unlock(&first);
    sink++;
}
OPAQUE void hold_short(void) {
    TIMED(1, pthread_mutex_lock(&second); usleep(2000));
    pthread_mutex_unlock(&second);
    sink++;
}
OPAQUE void *worker(void *argument) {
    for (int i = 0; i < 10; i++) { hold_long(); hold_short(); }
    for (int i = 0; i < 2; i++) __atomic_fetch_add(&sums[i], waited[i], __ATOMIC_RELAXED);
    return argument;
}
OPAQUE void nap(void) { TIMED(2, usleep(50000)); sink++; }
int main(void) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, worker, 0);
    nap();
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    printf("hold_long %ld\nhold_short %ld\nnap %ld\n", sums[0], sums[1], waited[2]);
    return 0;
}
"#;

/// How often a run may be disturbed: the program's own times have those for which a thread was ready, and waited for a processor.
const TRIES: usize = 10;

fn who_waits_for_which_lock() {
    let place = Place::new();
    place.c("locks", LOCKS, &["-pthread"]);
    for libs in ["--libs=auto", "--libs=all"] {
        let mut wrong = String::new();
        let is_right = (0..TRIES).any(|_| {
            wrong = compare(&place, libs);
            wrong.is_empty()
        });
        assert!(is_right, "{libs}: {wrong}");
    }
}

/// Returns what is wrong with one run.
fn compare(place: &Place, libs: &str) -> String {
    let outcome = place.run(&["-q", "--paths", libs, "./locks"]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    let known: BTreeMap<String, u64> = outcome
        .stdout_text()
        .lines()
        .filter_map(|line| line.split_once(' ').map(|(name, ns)| (name.to_owned(), ns.parse().unwrap())))
        .collect();
    let json = waits(place);
    let rows = json["waits"].as_array().unwrap();
    let of = |row: &Value| row["waiting_ns"].as_u64().unwrap();
    assert!(rows.is_sorted_by(|one, next| of(one) >= of(next)), "the longest first: {json}");
    assert_eq!(json["total_ns"].as_u64().unwrap(), rows.iter().map(of).sum::<u64>());
    // The functions that wait are those of the C library if it is hooked: their callers say for which lock.
    let mut found: BTreeMap<&str, u64> = BTreeMap::new();
    for row in rows {
        let path = std::iter::once(&row["name"]).chain(row["callers"].as_array().unwrap());
        let names: Vec<&str> = path.map(|name| name.as_str().unwrap()).collect();
        let name = names.iter().find(|name| known.contains_key(**name));
        *found.entry(name.copied().unwrap_or("elsewhere")).or_default() += of(row);
        if libs == "--libs=all" && name == Some(&"hold_long") {
            let by_name = names[0].contains("lock_wait") || names[0].contains("nanosleep");
            assert!(by_name || of(row) < 1_000_000, "the function that waits: {names:?}");
        }
    }
    let mut wrong = String::new();
    for (name, known) in &known {
        let found = found.get(&**name).copied().unwrap_or(0);
        if found.abs_diff(*known) > known / 20 + 1_000_000 {
            wrong += &format!("{name} waited {known} ns, found {found}; ");
        }
    }
    wrong
}

fn waits(place: &Place) -> Value {
    let mut command = std::process::Command::new(tool::gmon().unwrap());
    let args = ["paths", "--waits", "--json", "-n", "0", "--min-percent", "0"];
    let output = command.args(args).current_dir(place.folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn what_cannot_be_known_is_said() {
    let place = Place::new();
    place.c("locks", LOCKS, &["-pthread"]);
    place.c("static", LOCKS, &["-pthread", "-static"]);
    for (options, about) in [
        (&["-q", "./locks"][..], "--waits: sampled stacks do not show who waits; `gprofinject --paths` measures it"),
        (&["-q", "--paths", "./static"], "--waits: it was not seen when the threads waited"),
    ] {
        assert_eq!(place.run(options).code(), 0);
        let mut command = std::process::Command::new(tool::gmon().unwrap());
        let output = command.args(["paths", "--waits"]).current_dir(place.folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(about), "{options:?}: {said}");
    }
}
