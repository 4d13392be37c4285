//! The view of the whole process against callgrind: every call of every hooked function, in the program and in its
//! libraries, in both modes, with and without the C library.

use std::path::Path;
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::callgrind;
use gprofinject_tests::place::Place;
use gprofinject_tests::tool::Hooks;
use gprofinject_tests::whole::{Runs, Truth};

gprofinject_tests::trials! {
    together:
        small_programs,
        xz,
        factor,
        lua_with_a_c_module,
        perl_with_xs_modules,
        git_log,
        openssl_dgst,
        python3_with_modules,
        rcc_with_qt;
}

/// Calls by every way that leads from module to module.
const LOW: &str = r#"
#include <setjmp.h>
#include <stdlib.h>
#define NOINLINE __attribute__((noinline))
NOINLINE int leaf(int x) { return x * 3; }
NOINLINE int low(int x) { return leaf(x) + leaf(x + 1); }
__attribute__((weak)) NOINLINE int replaced(int x) { return x; }
NOINLINE int asks(int x) { return replaced(x) + 1; }
NOINLINE int twice(int (*f)(int), int x) { return f(x) + f(x + 1); }
static NOINLINE int order(const void *a, const void *b) { return *(int *)a - *(int *)b; }
NOINLINE void sorted(int *v, int n) { qsort(v, n, sizeof *v, order); }
NOINLINE void leaves(jmp_buf *to, int x) { if (x) longjmp(*to, x); }
static int plain(int x) { return x + 1; }
static int other(int x) { return x + 2; }
static int (*const table[])(int) = {plain, other, leaf};
NOINLINE int by_table(int x) { return table[x % 3](x); }
static int begun;
static NOINLINE void note(void) { begun++; }
__attribute__((constructor)) static void begin(void) { note(); }
__attribute__((destructor)) static void end(void) { note(); }
"#;
const HIGH: &str = r#"
#define NOINLINE __attribute__((noinline))
int low(int), leaf(int), twice(int (*)(int), int);
static int chosen(int x) { return x + 5; }
static int (*resolve(void))(int) { return chosen; }
NOINLINE int fast(int) __attribute__((ifunc("resolve")));
NOINLINE int each(int n, int (*f)(int)) { int s = 0; for (int i = 0; i < n; i++) s += f(i) + low(i); return s; }
NOINLINE int tail(int x) { return leaf(x); }
NOINLINE int again(int (*f)(int), int x) { return twice(f, x); }
"#;
const PLUGIN: &str = r#"
#define NOINLINE __attribute__((noinline))
int low(int), helper(int);
static NOINLINE int inner(int x) { return low(x) + helper(x); }
int enter(int x) { return inner(x) + inner(x + 1); }
static NOINLINE void note(void) { __asm__ volatile(""); }
__attribute__((constructor)) static void begin(void) { note(); helper(1); }
"#;
const MAIN: &str = r#"
#include <dlfcn.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#define NOINLINE __attribute__((noinline))
int leaf(int), low(int), asks(int), twice(int (*)(int), int), by_table(int), fast(int), tail(int);
int each(int, int (*)(int)), again(int (*)(int), int);
void sorted(int *, int), leaves(jmp_buf *, int);
NOINLINE int helper(int x) { return x ^ 1; }
NOINLINE int replaced(int x) { return helper(x) + 7; }
NOINLINE int own(const void *a, const void *b) { return *(int *)b - *(int *)a; }
NOINLINE int callback(int x) { return helper(x) + low(x); }
NOINLINE int jumping(int x) {
    jmp_buf b;
    volatile int y = x;
    if (setjmp(b)) return y;
    leaves(&b, y & 1);
    return low(y);
}
int main(int argc, char **argv) {
    int v[9] = {5, 3, 8, 1, 9, 2, 7, 4, 6};
    long s = 0;
    int (*volatile pointer)(int) = low;
    sorted(v, 9);
    qsort(v, 9, sizeof *v, own);
    for (int i = 0; i < 20; i++) s += low(i) + asks(i) + by_table(i) + fast(i) + tail(i) + pointer(i) + jumping(i);
    s += each(5, callback) + twice(callback, 3) + again(helper, 4) + again(low, 5);
    void *plugin = dlopen(argv[1], RTLD_NOW);
    if (!plugin) { puts(dlerror()); return 9; }
    int (*enter)(int) = (int (*)(int))dlsym(plugin, "enter");
    for (int i = 0; i < 6; i++) s += enter(i);
    printf("%ld %d\n", s, v[0]);
    return 0;
}
"#;

/// Compares one program in both modes, and prints what was compared.
fn compare(name: &str, program: &Path, args: &[&str], runs: Runs, selections: &[&str]) {
    compare_in(name, program, args, runs, selections, "");
}

/// Compares one program, but of functions in only those modules whose names contain a text.
fn compare_in(name: &str, program: &Path, args: &[&str], runs: Runs, selections: &[&str], module: &str) {
    let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
    /// How often callgrind runs again if something differs: what depends on chance may have been the same in all its runs.
    const AGAIN: usize = 6;
    let mut truth = Truth::count(program, &args, None, runs).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    let mut left = if matches!(runs, Runs::One) { 0 } else { AGAIN };
    let mut wrong = Vec::new();
    for libs in selections {
        for hooks in Hooks::ALL {
            let what = format!("{name} --libs {libs} {}", hooks.option());
            let compared = |truth: &Truth| truth.compare(libs, hooks).unwrap_or_else(|error| panic!("{what}: {error:#}"));
            let mut report = compared(&truth);
            if !report.is_equal() && left > 0 {
                println!("{what}, at first: {report}");
                truth.count_again(left).unwrap_or_else(|error| panic!("{what}: {error:#}"));
                left = 0;
                report = compared(&truth);
            }
            assert!(report.arcs > 20, "{what}: nothing was compared: {report}");
            println!("{what}: {report}");
            let differences = report.wrong_counts.iter().chain(&report.wrong_arcs);
            if differences.filter(|difference| difference.contains(module)).count() > 0 {
                wrong.push(format!("{what}: {report}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const BOTH: [&str; 2] = ["auto", "all"];
/// Whether a test of an installed program can run.
fn has(test: &str, files: &[&str]) -> bool {
    if !callgrind::available() {
        skip::skipped(&format!("whole::{test}"), "no valgrind");
        return false;
    }
    let missing = files.iter().find(|file| !Path::new(file).exists());
    if let Some(file) = missing {
        skip::skipped(&format!("whole::{test}"), &format!("no {file}"));
    }
    missing.is_none()
}

fn small_programs() {
    if !has("small_programs", &[]) {
        return;
    }
    for flags in [
        &["-O0"][..],
        &["-O1"],
        &["-O2"],
        &["-O3"],
        &["-Os"],
        &["-O2", "-fcf-protection"],
        &["-O2", "-fno-plt"],
        &["-O2", "-Wl,-Bsymbolic"],
    ] {
        let place = Place::new();
        let shared = ["-g", "-fPIC", "-shared"];
        place.c("liblow.so", LOW, &[flags, &shared].concat());
        let low = place.path("liblow.so");
        let low = low.to_str().unwrap();
        place.c("libhigh.so", HIGH, &[flags, &shared, &[low, "-Wl,-rpath,$ORIGIN"]].concat());
        let high = place.path("libhigh.so");
        place.c("plugin.so", PLUGIN, &[flags, &shared, &[low, "-Wl,-rpath,$ORIGIN"]].concat());
        let libraries = [low, high.to_str().unwrap(), "-Wl,-rpath,$ORIGIN", "-rdynamic"];
        let program = place.c("prog", MAIN, &[flags, &["-g"], &libraries].concat());
        let plugin = place.path("plugin.so");
        compare(&format!("small {}", flags.join(" ")), &program, &[plugin.to_str().unwrap()], Runs::One, &BOTH);
    }
}

/// Writes a file for programs to work on.
fn file(place: &Place, name: &str, contents: &str) -> String {
    let path = place.path(name);
    std::fs::write(&path, contents).unwrap();
    path.to_str().unwrap().to_owned()
}

fn text() -> String {
    (0..400).map(|i| format!("line {i} of {}\n", i * i % 97)).collect()
}

fn xz() {
    if has("xz", &["/usr/bin/xz"]) {
        let place = Place::new();
        let input = file(&place, "text", &text());
        compare("xz", Path::new("/usr/bin/xz"), &["-1", "-T1", "-c", &input], Runs::Several(3), &BOTH);
    }
}

fn factor() {
    if has("factor", &["/usr/bin/factor"]) {
        compare("factor", Path::new("/usr/bin/factor"), &["1000000000000000000000000000057"], Runs::Several(3), &BOTH);
    }
}

fn lua_with_a_c_module() {
    const MODULES: &str = "/usr/lib/x86_64-linux-gnu/lua/5.4";
    if has("lua_with_a_c_module", &["/usr/bin/lua5.4", &format!("{MODULES}/cjson.so")]) {
        let place = Place::new();
        let script = format!(
            "package.cpath = '{MODULES}/?.so'\nlocal j = require 'cjson'\nlocal s = 0\n\
             for i = 1, 30 do local t = j.encode({{i, i * 2, {{x = i}}}}); s = s + #t + j.decode(t)[1] end\nprint(s)\n"
        );
        let script = file(&place, "script.lua", &script);
        // The interpreter hashes strings with a seed that is made of the time and of addresses, so its tables differ from run
        // to run.
        compare_in("lua", Path::new("/usr/bin/lua5.4"), &[&script], Runs::Several(3), &BOTH, "cjson");
    }
}

fn perl_with_xs_modules() {
    if has("perl_with_xs_modules", &["/usr/bin/perl"]) {
        const SCRIPT: &str = "use List::Util qw(sum reduce); use POSIX qw(floor); use Data::Dumper;\n\
            use Storable qw(freeze thaw); use Digest::SHA qw(sha256_hex); $Data::Dumper::Sortkeys = 1;\n\
            my $s = sum(map { floor($_ * 1.5) } 1 .. 50); my $d = { a => [1 .. 5], b => 'x' };\n\
            for (1 .. 10) { $s += length(Dumper(thaw(freeze($d)))) + length(sha256_hex($_ x 100)); }\n\
            $s += reduce { $a + $b } 1 .. 20; print \"$s \", join(',', sort { $a <=> $b } map { $_ * 7 % 13 } 1 .. 20);\n";
        let place = Place::new();
        let script = file(&place, "script.pl", SCRIPT);
        compare("perl", Path::new("/usr/bin/perl"), &[&script], Runs::Several(3), &BOTH);
    }
}

fn git_log() {
    if has("git_log", &["/usr/bin/git"]) {
        let place = Place::new();
        let folder = place.folder.path().to_str().unwrap();
        let git = |args: &[&str]| {
            let mut git = Command::new("/usr/bin/git");
            git.args(["-C", folder, "-c", "user.name=a", "-c", "user.email=a@b"]).args(args);
            let done = git.env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
            assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        };
        git(&["init", "-q"]);
        for i in 0..5 {
            file(&place, &format!("file{i}"), &text()[..100 * (i + 1)]);
            git(&["add", "."]);
            git(&["commit", "-q", "-m", "a commit"]);
        }
        compare("git", Path::new("/usr/bin/git"), &["-C", folder, "log", "--stat"], Runs::Several(3), &BOTH);
    }
}

fn openssl_dgst() {
    if has("openssl_dgst", &["/usr/bin/openssl"]) {
        let place = Place::new();
        let input = file(&place, "text", &text());
        compare("openssl", Path::new("/usr/bin/openssl"), &["dgst", "-sha256", &input], Runs::Several(3), &BOTH);
    }
}

fn python3_with_modules() {
    if has("python3_with_modules", &["/usr/bin/python3"]) {
        const SCRIPT: &str = r#"
import json, re, sqlite3
rows = [{"id": i, "name": "n%d" % (i * 7 % 13), "tags": ["a", None, True, i / 3]} for i in range(40)]
text = json.dumps(rows, sort_keys=True)
found = re.findall(r'"(\w+)":\s*("[^"]*"|[-\d.e]+|\[)', text)
db = sqlite3.connect(":memory:")
db.execute("create table t(id integer primary key, name text, score real)")
db.executemany("insert into t(name, score) values (?, ?)", [(r["name"], r["tags"][3]) for r in json.loads(text)])
print(len(text), len(found), db.execute("select name, count(*), sum(score) from t group by name order by 2, 1").fetchall())
try:
    db.execute("select nothing from t")
except sqlite3.Error as error:
    print(error)
"#;
        let place = Place::new();
        let script = file(&place, "script.py", SCRIPT);
        // Without `site` and PYTHON variables, which would import more modules on some machines than on others.
        compare("python3", Path::new("/usr/bin/python3"), &["-S", "-E", &script], Runs::Several(3), &BOTH);
    }
}

/// Qt's resource compiler, in C++.
fn rcc_with_qt() {
    let installed = ["/usr/lib/qt5/bin/rcc", "/usr/lib/qt6/libexec/rcc"].map(Path::new);
    let rcc = installed.into_iter().find(|path| path.exists()).unwrap_or(installed[0]);
    if has("rcc_with_qt", &[rcc.to_str().unwrap()]) {
        let place = Place::new();
        file(&place, "text", &text());
        const LIST: &str = "<RCC><qresource prefix='/a'><file>text</file></qresource></RCC>";
        let list = file(&place, "list.qrc", LIST);
        compare("rcc", rcc, &[&list], Runs::Several(3), &BOTH);
    }
}
