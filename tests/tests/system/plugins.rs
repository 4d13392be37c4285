//! Libraries that come and go while the program runs: by dlopen, in each other's place, in threads, in namespaces of
//! their own.

use gprofinject_tests::place::Place;
use gprofinject_tests::tool::Hooks;

use crate::libraries::{has, own, same, whole};

gprofinject_tests::trials! {
    together:
        plugins_that_come_and_go,
        plugins_in_threads,
        plugins_beside_a_hooked_dynamic_linker,
        a_namespace_of_its_own;
}

const PLUGIN: &str = r"
#define NOINLINE __attribute__((noinline))
extern void count(int);
static NOINLINE int work(int x) { return x + WHICH; }
int enter(int x) { int s = 0; for (int i = 0; i < 3; i++) s += work(x + i); count(WHICH); return s; }
__attribute__((constructor)) static void begin(void) { count(WHICH); }
";
pub(crate) const HOST: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static long counted[2];
__attribute__((noinline)) void count(int which) { __atomic_add_fetch(&counted[which], 1, __ATOMIC_RELAXED); }
__attribute__((noinline)) static int use(const char *name, int flags) {
    void *library = dlopen(name, flags);
    if (!library) { puts(dlerror()); exit(9); }
    int (*enter)(int) = dlsym(library, "enter");
    int result = enter(1);
    dlclose(library);
    return result;
}
static int times;
static void *thread(void *name) {
    long sum = 0;
    for (int i = 0; i < times; i++) sum += use(name, i % 2 ? RTLD_NOW : RTLD_LAZY);
    return (void *)sum;
}
int main(int argc, char **argv) {
    int threads = atoi(argv[1]);
    times = atoi(argv[2]);
    if (threads == 0) {
        long sum = 0;
        for (int i = 0; i < times; i++) sum += use(i % 2 ? "./one.so" : "./zero.so", RTLD_NOW);
        printf("%ld\n", sum);
    } else {
        pthread_t all[16];
        long sum = 0;
        for (int i = 0; i < threads; i++) pthread_create(&all[i], 0, thread, i % 2 ? "./one.so" : "./zero.so");
        for (int i = 0; i < threads; i++) { void *part; pthread_join(all[i], &part); sum += (long)part; }
        printf("%ld\n", sum);
    }
    FILE *file = fopen("counts", "w");
    fprintf(file, "%ld %ld\n", counted[0], counted[1]);
    fclose(file);
    return 0;
}
"#;

pub(crate) fn with_plugins() -> Place {
    let place = Place::new();
    place.c("zero.so", PLUGIN, &["-g", "-fPIC", "-shared", "-DWHICH=0"]);
    place.c("one.so", PLUGIN, &["-g", "-fPIC", "-shared", "-DWHICH=1"]);
    place.c("prog", HOST, &["-g", "-rdynamic", "-pthread", "-ldl"]);
    place
}

/// Checks the counts of plugins against the program's own counters. `each` is how often each plugin was entered.
pub(crate) fn plugins_are_counted(place: &Place, each: u64) {
    let counts = std::fs::read_to_string(place.path("counts")).unwrap();
    let total: u64 = counts.split_whitespace().map(|count| count.parse::<u64>().unwrap()).sum();
    let calls = whole(place);
    has(&calls, &[("use", "enter", 2 * each), ("enter", "work", 6 * each), ("enter", "count", 2 * each)], "plugins");
    let begun = calls.get(&("begin".to_owned(), "count".to_owned())).copied().unwrap_or(0);
    assert_eq!(begun + 2 * each, total, "{calls:#?}");
}

fn plugins_that_come_and_go() {
    let place = with_plugins();
    same(&place, &["-q", "--libs", "none"], &["0", "40"]);
    let alone = own(&place);
    let outcome = same(&place, &["-v", "--libs", "auto"], &["0", "40"]);
    assert!(!outcome.stderr_text().contains("not hooked"), "{}", outcome.stderr_text());
    plugins_are_counted(&place, 20);
    assert_eq!(own(&place), alone, "the program's own view");
}

/// With `--hooks`, the dynamic linker is hooked like any other library. It still tells the agent what it loads.
fn plugins_beside_a_hooked_dynamic_linker() {
    let place = with_plugins();
    for hooks in Hooks::ALL {
        same(&place, &["-q", "--libs", "all", hooks.option()], &["0", "40"]);
        plugins_are_counted(&place, 20);
    }
}

fn plugins_in_threads() {
    let place = with_plugins();
    same(&place, &["-q", "--libs", "auto"], &["4", "250"]);
    plugins_are_counted(&place, 500);
}

fn a_namespace_of_its_own() {
    const USER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
__attribute__((noinline)) static int call(int (*enter)(int)) { int r = enter(1); return r + enter(2); }
int main(void) {
    void *library = dlmopen(LM_ID_NEWLM, "./alone.so", RTLD_NOW);
    if (!library) { puts(dlerror()); return 9; }
    printf("%d\n", call(dlsym(library, "enter")));
    return 0;
}
"#;
    const ALONE: &str = r"
static __attribute__((noinline)) int work(int x) { return x + 1; }
int enter(int x) { return work(x) * work(x + 1); }
";
    let place = Place::new();
    place.c("alone.so", ALONE, &["-g", "-fPIC", "-shared"]);
    place.c("prog", USER, &["-g", "-ldl"]);
    same(&place, &["-q", "--libs", "auto"], &[]);
    has(&whole(&place), &[("call", "enter", 2), ("enter", "work", 4)], "a namespace");
}
