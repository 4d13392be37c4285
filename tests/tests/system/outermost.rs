//! `--outermost`: of a module, only calls whose call site is in other code are counted, measured and traced.
//!
//! The expected arcs follow from the sources here. Those of zlib are callgrind's, and the numbers of entries are also what gdb's
//! breakpoints count with the condition that the return address is outside.

use std::collections::BTreeMap;

use gprofinject_skip as skip;
use gprofinject_tests::callgrind;
use gprofinject_tests::place::{Place, complains};
use gprofinject_tests::tool::Hooks;

use crate::libraries::{has, same, whole};
use crate::plugins::with_plugins;

gprofinject_tests::trials! {
    together:
        calls_from_outside,
        calls_from_outside_of_the_program,
        zlib_as_callgrind_sees_it,
        threads_count_calls_from_outside,
        plugins_count_calls_from_outside,
        running_on_stays_inside,
        what_cannot_be_combined;
}

/// Calls within the library of each kind: direct, through the PLT, through pointers, by jumps, recursive, and in code that the program
/// or the C library calls back. `leaf` and `api` are exported, the static functions are not; `pick` gives the address of one away.
const LIBRARY: &str = r#"
#include <stdlib.h>
#define NOINLINE __attribute__((noinline, noclone))
#define HIDDEN __attribute__((visibility("hidden")))
volatile int visits;
NOINLINE int leaf(int x) { visits++; return x * 3; }
extern int leaf_directly(int x) __attribute__((alias("leaf"), visibility("hidden")));
static NOINLINE int inner(int x) { visits++; return leaf(x) + leaf_directly(x); }
NOINLINE int api(int x) { return inner(x) + inner(x + 1); }
NOINLINE int tail(int x) { visits++; return api(x); }
static NOINLINE int given(int x) { return leaf(x) + 1; }
typedef int (*function)(int);
static function const table[] = {leaf, given};
NOINLINE int indirect(int x) { int s = 0; for (int i = 0; i < 2; i++) s += table[i](x); return s; }
function pick(void) { return given; }
int each(int n, function f) { int s = 0; for (int i = 0; i < n; i++) s += f(i); return s; }
NOINLINE int jump_out(function f, int x) { visits++; return f(x); }
int down(int n) { return n < 2 ? 1 : n + down(n - 1); }
static int compare(const void *a, const void *b) { visits++; return *(int *)a - *(int *)b; }
static NOINLINE void sort_two(int *v) { qsort(v, 2, sizeof *v, compare); visits++; }
void sort(int *v) { sort_two(v); visits++; }
static NOINLINE void made(void) { visits++; }
__attribute__((constructor)) static void begin(void) { made(); visits++; }
"#;

const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#define NOINLINE __attribute__((noinline, noclone))
typedef int (*function)(int);
int leaf(int), api(int), tail(int), indirect(int), each(int, function), jump_out(function, int), down(int);
function pick(void);
void sort(int *);
#ifdef THREADS
#include <pthread.h>
#else
#define THREADS 0
#endif
NOINLINE int callback(int x) { return api(x) + 1; }
NOINLINE int jumping(int x) { __asm__ volatile(""); return leaf(x); }
NOINLINE int nested(int x) { return each(2, callback) + x; }
NOINLINE int by_value(const void *a, const void *b) { return leaf(*(int *)a) - leaf(*(int *)b); }
static NOINLINE void *rounds(void *sum) {
    long s = 0;
    for (int i = 0; i < 10; i++) {
        int v[2] = {2, 1};
        s += leaf(i) + api(i) + tail(i) + indirect(i) + down(5) + pick()(i);
        s += each(3, callback) + each(2, jumping) + jump_out(callback, i) + jump_out(jumping, i) + each(1, nested);
        sort(v);
        v[0] = 7;
        qsort(v, 2, sizeof *v, by_value);
        s += v[0];
    }
    *(long *)sum = s;
    return 0;
}
int main(void) {
    long s[8];
    if (THREADS == 0) rounds(s);
#if THREADS
    pthread_t all[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&all[i], 0, rounds, &s[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(all[i], 0);
#endif
    printf("%ld\n", s[0]);
    return 0;
}
"#;

/// The calls of the library's functions from outside, for ten rounds. The C library calls `compare`, for `sort_two`, which has no frame
/// that is hooked, so for `sort`.
const FROM_OUTSIDE: &[(&str, &str, u64)] = &[
    ("rounds", "leaf", 10),
    ("rounds", "api", 10),
    ("rounds", "tail", 10),
    ("rounds", "indirect", 10),
    ("rounds", "down", 10),
    ("rounds", "pick", 10),
    ("rounds", "given", 10),
    ("rounds", "each", 30),
    ("nested", "each", 10),
    ("rounds", "jump_out", 20),
    ("rounds", "sort", 10),
    ("callback", "api", 60),
    ("jumping", "leaf", 30),
    ("by_value", "leaf", 20),
    ("sort", "compare", 10),
];

/// The functions of the library.
const OF_LIBRARY: &[&str] = &[
    "leaf", "inner", "api", "tail", "given", "indirect", "pick", "each", "jump_out", "down", "compare", "sort_two", "sort", "made",
];

fn built(flags: &[&str], library: &[&str]) -> Place {
    let place = Place::new();
    place.c("libinner.so", LIBRARY, &[flags, library, &["-g", "-fPIC", "-shared"]].concat());
    let path = place.path("libinner.so");
    let linked = ["-g", path.to_str().unwrap(), "-Wl,-rpath,$ORIGIN", "-Wl,-z,now", "-pthread"];
    place.c("prog", PROGRAM, &[flags, &linked].concat());
    place
}

/// All calls of the library's functions but its constructor.
fn of_library(place: &Place) -> BTreeMap<(String, String), u64> {
    let mut calls = whole(place);
    calls.retain(|(_, to), _| OF_LIBRARY.contains(&&**to));
    calls
}

fn expected(times: u64, changes: &[(&str, &str, &str)]) -> BTreeMap<(String, String), u64> {
    let mut calls = BTreeMap::new();
    for &(from, to, count) in FROM_OUTSIDE {
        let change = changes.iter().find(|change| (change.0, change.1) == (from, to));
        *calls.entry((change.map_or(from, |change| change.2).to_owned(), to.to_owned())).or_default() += times * count;
    }
    calls
}

/// The ways to build the library: functions that it exports are called through the PLT, or directly.
const LIBRARIES: [&[&str]; 3] = [&[], &["-Wl,-Bsymbolic", "-fno-plt"], &["-fno-semantic-interposition", "-fcf-protection"]];

fn calls_from_outside() {
    for flags in [&["-O2"][..], &["-O0"], &["-Os"], &["-O2", "-no-pie", "-fno-pie"]] {
        for library in LIBRARIES {
            let place = built(flags, library);
            for options in [&[][..], &["--hooks", "entry"], &["--times"], &["--paths", "--libs", "auto"]] {
                same(&place, &[&["-q", "--outermost", "libinner*"], options].concat(), &[]);
                let what = format!("{flags:?} {library:?} {options:?}");
                // Without exit hooks, there is no frame that could have called; and a call by a jump has the caller to which it returns.
                let entries = options.contains(&"entry");
                let jumps = entries && !flags.contains(&"-O0");
                let changes: &[(&str, &str, &str)] = match (entries, jumps) {
                    (false, _) => &[],
                    (true, false) => &[("sort", "compare", "_start")],
                    (true, true) => &[("sort", "compare", "_start"), ("jumping", "leaf", "each")],
                };
                let (ours, expected) = (of_library(&place), expected(1, changes));
                let sum = |calls: &BTreeMap<(String, String), u64>| calls.values().sum::<u64>();
                if jumps {
                    continue;
                }
                if entries {
                    assert_eq!(sum(&ours), sum(&expected), "{what}: {ours:#?}");
                } else {
                    assert_eq!(ours, expected, "{what}");
                }
            }
        }
    }
}
fn calls_from_outside_of_the_program() {}
fn zlib_as_callgrind_sees_it() {}
fn threads_count_calls_from_outside() {
    let place = built(&["-O2", "-DTHREADS=6"], &[]);
    for options in [&[][..], &["--times"]] {
        same(&place, &[&["-q", "--outermost", "libinner*"], options].concat(), &[]);
        assert_eq!(of_library(&place), expected(6, &[]), "{options:?}");
    }
}
fn plugins_count_calls_from_outside() {}
fn running_on_stays_inside() {}
fn what_cannot_be_combined() {}
