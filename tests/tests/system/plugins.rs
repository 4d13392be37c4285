//! Libraries that come and go while the program runs: by dlopen, in each other's place, in threads, in namespaces of
//! their own.

use gprofinject_tests::place::Place;
use gprofinject_tests::tool::Hooks;

use crate::libraries::{has, own, same, same_with, whole};

gprofinject_tests::trials! {
    together:
        plugins_that_come_and_go,
        plugins_in_threads,
        plugins_while_others_run,
        plugins_that_need_libraries,
        what_the_c_library_loads,
        preloaded_and_auditing_libraries,
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
static long counted[3];
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
static volatile int is_over;
static void *caller(void *library) {
    int (*enter)(int) = dlsym(library, "enter");
    for (int i = 0; !is_over; i++) enter(i);
    return 0;
}
int main(int argc, char **argv) {
    int threads = atoi(argv[1]), callers = argc > 3 ? atoi(argv[3]) : 0;
    times = atoi(argv[2]);
    void *library = callers ? dlopen("./two.so", RTLD_NOW) : 0;
    pthread_t calling[4];
    for (int i = 0; i < callers; i++) pthread_create(&calling[i], 0, caller, library);
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
    is_over = 1;
    for (int i = 0; i < callers; i++) pthread_join(calling[i], 0);
    FILE *file = fopen("counts", "w");
    fprintf(file, "%ld %ld\n", counted[0] + counted[1], counted[2]);
    fclose(file);
    return 0;
}
"#;

pub(crate) fn with_plugins() -> Place {
    with_plugins_by("gcc")
}

/// Compiles the host and its plugins with another compiler.
pub(crate) fn with_plugins_by(compiler: &str) -> Place {
    let place = Place::new();
    for (name, which) in [("zero.so", "-DWHICH=0"), ("one.so", "-DWHICH=1"), ("two.so", "-DWHICH=2")] {
        place.compile(compiler, name, PLUGIN, &["-g", "-fPIC", "-shared", which]).unwrap();
    }
    place.compile(compiler, "prog", HOST, &["-g", "-rdynamic", "-pthread", "-ldl"]).unwrap();
    place
}

/// Checks the counts of plugins against the program's own counters. `each` is how often each of two plugins was entered; the
/// third one stays loaded, and other threads enter it.
pub(crate) fn plugins_are_counted(place: &Place, each: u64) {
    let counts = std::fs::read_to_string(place.path("counts")).unwrap();
    let counts: Vec<u64> = counts.split_whitespace().map(|count| count.parse().unwrap()).collect();
    let (come_and_gone, stayed) = (counts[0], counts[1]);
    let calls = whole(place);
    let (entered, begun) = (2 * each, stayed.min(1));
    let running = stayed - begun;
    let all = entered + running;
    let expected = [
        ("use", "enter", entered),
        ("caller", "enter", running),
        ("enter", "work", 3 * all),
        ("enter", "count", all),
        ("begin", "count", come_and_gone - entered + begun),
    ];
    has(&calls, &expected, "plugins");
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

/// Threads that run while others load and unload libraries a thousand times: they call functions of the program, and of a
/// library that stays.
fn plugins_while_others_run() {
    let place = with_plugins();
    for options in [&["--hooks=both"], &["--hooks=entry"]] {
        let outcome = same(&place, &[options, &["-v", "--libs=auto"][..]].concat(), &["4", "250", "2"]);
        plugins_are_counted(&place, 500);
        let said = outcome.stderr_text();
        assert!(!said.contains("could not be counted") && !said.contains("no answer"), "{said}");
    }
}

/// A plugin that needs another library, from whose class its own is derived. Both are loaded and unloaded together. The
/// program knows only the class, so each of its calls goes through a table of virtual functions.
fn plugins_that_need_libraries() {
    const CLASS: &str = "struct Shape { virtual int area(int); virtual int total(int); virtual ~Shape() {} };";
    const BASE: &str = r#"
int Shape::area(int x) { return x; }
int Shape::total(int n) { int s = 0; for (int i = 0; i < n; i++) s += area(i); return s; }
"#;
    const DERIVED: &str = r#"
extern "C" __attribute__((noinline)) int helper(int x) { return x * x; }
struct Square : Shape { int area(int x) override { return helper(x) + Shape::area(x); } };
extern "C" Shape *create(void) { return new Square; }
"#;
    const USER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
extern "C" __attribute__((noinline)) int use(const char *name, int flags) {
    void *library = dlopen(name, flags);
    if (!library) { puts(dlerror()); exit(9); }
    Shape *shape = ((Shape *(*)(void))dlsym(library, "create"))();
    int total = shape->total(5) + shape->area(3);
    delete shape;
    dlclose(library);
    return total;
}
int main() {
    int s = 0;
    for (int i = 0; i < 10; i++) s += use(i % 2 ? "./other.so" : "./derived.so", i % 3 ? RTLD_LAZY : RTLD_NOW | RTLD_GLOBAL);
    printf("%d\n", s);
}
"#;
    let place = Place::new();
    let build = |name: &str, code: &str, flags: &[&str]| {
        place.compile("g++", name, &format!("{CLASS}{code}"), &[&["-xc++", "-g"], flags].concat()).unwrap()
    };
    let base = build("libbase.so", BASE, &["-fPIC", "-shared"]);
    let library = ["-fPIC", "-shared", "-xnone", base.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"];
    build("derived.so", DERIVED, &library);
    // The same plugin by another name, and built in another way.
    build("libother.so.1.0", DERIVED, &[&["-O2", "-fno-plt", "-Wl,-z,now,-z,relro"], &library[..]].concat());
    std::os::unix::fs::symlink("libother.so.1.0", place.path("other.so")).unwrap();
    build("prog", USER, &["-ldl"]);
    for libs in ["auto", "all"] {
        for hooks in Hooks::ALL {
            same(&place, &["-q", "--libs", libs, hooks.option()], &[]);
            let (total, area, of_base) = ("_ZN5Shape5totalEi", "_ZN6Square4areaEi", "_ZN5Shape4areaEi");
            let expected = [
                ("main", "use", 10),
                ("use", "create", 10),
                ("use", total, 10),
                (total, area, 50),
                ("use", area, 10),
                (area, "helper", 60),
                (area, of_base, 60),
            ];
            has(&whole(&place), &expected, &format!("{libs} {hooks:?}"));
        }
    }
}

/// The C library loads libraries by its own means: modules that convert characters, and those that find users.
fn what_the_c_library_loads() {
    const USERS: &str = r#"
#include <nss.h>
#include <pwd.h>
#include <string.h>
__attribute__((noinline)) static int is_wanted(const char *name) { return strcmp(name, "somebody") == 0; }
enum nss_status _nss_own_getpwnam_r(const char *name, struct passwd *result, char *buffer, size_t len, int *error) {
    if (!is_wanted(name)) return NSS_STATUS_NOTFOUND;
    memset(result, 0, sizeof *result);
    result->pw_name = strcpy(buffer, name);
    result->pw_uid = 4711;
    return NSS_STATUS_SUCCESS;
}
"#;
    const USER: &str = r#"
#include <iconv.h>
#include <nss.h>
#include <pwd.h>
#include <stdio.h>
int __nss_configure_lookup(const char *database, const char *services);
__attribute__((noinline)) static long convert(int times) {
    long length = 0;
    for (int i = 0; i < times; i++) {
        char from[] = "abc\xb1\xe6", to[64], *in = from, *out = to;
        size_t left = 5, room = sizeof to;
        iconv_t conversion = iconv_open("UTF-16", "ISO-8859-2");
        if (conversion == (iconv_t)-1) return -1;
        iconv(conversion, &in, &left, &out, &room);
        length += out - to;
        iconv_close(conversion);
    }
    return length;
}
__attribute__((noinline)) static int find(const char *name) {
    struct passwd *found = getpwnam(name);
    return found ? found->pw_uid : -1;
}
int main(void) {
    __nss_configure_lookup("passwd", "own");
    for (int i = 0; i < 7; i++) printf("%d\n", find(i % 2 ? "somebody" : "nobody"));
    printf("%ld\n", convert(10));
    return 0;
}
"#;
    let place = Place::new();
    place.c("libnss_own.so.2", USERS, &["-g", "-fPIC", "-shared", "-Wl,-soname,libnss_own.so.2"]);
    place.c("prog", USER, &["-g"]);
    let environment = [("LD_LIBRARY_PATH", place.folder.path())];
    for (hooks, libs) in [(Hooks::Both, "auto"), (Hooks::Entry, "auto"), (Hooks::Both, "all"), (Hooks::Entry, "all")] {
        let outcome = same_with(&place, &environment, &["-q", "--libs", libs, hooks.option()], &[]);
        let calls = whole(&place);
        let what = format!("{hooks:?} {libs}");
        has(&calls, &[("_nss_own_getpwnam_r", "is_wanted", 7)], &what);
        if outcome.stdout_text().contains("-1\n120\n") {
            // Each conversion goes through two modules.
            let converted: u64 = calls.iter().filter(|((_, to), _)| to == "gconv").map(|(_, count)| count).sum();
            assert_eq!(converted, 20, "{what}: {calls:#?}");
        }
    }
}

/// Libraries that the environment adds to the program: preloaded ones, whose constructors run before the program's, and
/// auditors, which have a namespace of their own and run before all others.
fn preloaded_and_auditing_libraries() {
    const FIRST: &str = r"
__attribute__((noinline)) int leaf(int x) { return x * 3; }
__attribute__((noinline)) static int all(int x) { int s = 0; for (int i = 0; i < 5; i++) s += leaf(x + i); return s; }
volatile int sum;
__attribute__((constructor)) static void begin(void) { sum = all(1); }
int getppid(void) { return all(1); }
";
    // The dynamic linker tells an auditor of each search for a library, also when the program runs already.
    const AUDITOR: &str = r#"
#define _GNU_SOURCE
#include <link.h>
#include <string.h>
volatile int sum;
__attribute__((noinline)) int noted(int x) { return x * 7; }
unsigned la_version(unsigned version) { return version; }
char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag) {
    if (strstr(name, "late") && flag == LA_SER_ORIG) sum += noted(1);
    return (char *)name;
}
"#;
    const USER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    int s = 0;
    for (int i = 0; i < 8; i++) s += getppid();
    for (int i = 0; i < 4; i++) s += dlopen("./late-and-not-there.so", RTLD_NOW) != 0;
    printf("%d\n", s);
    return 0;
}
"#;
    let place = Place::new();
    let preloaded = place.c("libfirst.so", FIRST, &["-g", "-fPIC", "-shared"]);
    let auditor = place.c("libauditor.so", AUDITOR, &["-g", "-fPIC", "-shared"]);
    place.c("prog", USER, &["-g", "-ldl"]);
    for hooks in Hooks::ALL {
        for libs in ["auto", "all"] {
            let options = ["-q", "--libs", libs, hooks.option()];
            same_with(&place, &[("LD_PRELOAD", &preloaded), ("LD_AUDIT", &auditor)], &options, &[]);
            let calls = whole(&place);
            let expected =
                [("begin", "all", 1), ("getppid", "all", 8), ("all", "leaf", 45), ("la_objsearch", "noted", 4)];
            has(&calls, &expected, &format!("{hooks:?} {libs}"));
        }
    }
}
