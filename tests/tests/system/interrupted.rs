//! Signal handlers at every instruction: the processor's trap flag makes each instruction of a program's functions, of their
//! thunks and of the agent's slow paths end in a signal, whose handler is charged to the function in which it is.
//!
//! Most of the functions have no cell in the shadow stack. The one that is interrupted must be found all the same: no call
//! of the handler may be charged to the functions around those that are stepped.

use std::collections::BTreeMap;

use gprofinject_tests::elf::Program;
use gprofinject_tests::gprofdata;
use gprofinject_tests::place::Place;

use crate::libraries::{same, whole};

gprofinject_tests::trials! {
    together:
        each_instruction_belongs_to_its_function,
        each_instruction_has_a_backtrace,
        each_instruction_of_a_library;
}

/// Functions that call each other directly, recursively, through a pointer, by the C library, and by jumps. `ordered` has a
/// cell, and its frame is handed on by two jumps; `order` has one if the C library calls it, and none if `ordered` does. `outer` turns
/// the trap flag on and off. The handler notes how often the signal came at each instruction near `leaf`.
const STEPS: &str = r#"
#define _GNU_SOURCE
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#define OPAQUE __attribute__((noipa))
#define BARRIER() __asm__ volatile("" ::: "memory")
#define FLAG(change) __asm__ volatile("lea -128(%%rsp), %%rsp\n pushf\n " change ", (%%rsp)\n popf\n lea 128(%%rsp), %%rsp" ::: "memory", "cc")
OPAQUE long leaf(long x) { BARRIER(); return x + 3; }
OPAQUE long inner(long x) { long r = leaf(x) ^ 1; BARRIER(); r += leaf(r); BARRIER(); return r; }
OPAQUE long tail(long x) { return inner(x + 2); }
OPAQUE long tails(long x) { if (x & 1) return tail(x + 1); return leaf(x); }
OPAQUE int compare(const void *a, const void *b) { long r = inner(*(int *)a); BARRIER(); return (r > 0) + *(int *)a - *(int *)b - 1; }
OPAQUE long cell(long x) { int v[3] = {3, x, 2}; qsort(v, 3, sizeof *v, compare); BARRIER(); return v[1] + inner(x); }
OPAQUE long recursive(long n) { if (n < 2) return n; long r = recursive(n - 1); BARRIER(); return r + recursive(n - 2); }
static long (*volatile pointer)(long) = tail;
OPAQUE long jumps(long x) { return cell(x + 1); }
OPAQUE int order(const void *a, const void *b) { long r = cell(*(int *)a & 1); BARRIER(); return (r < 0) + *(int *)a - *(int *)b; }
OPAQUE long ordered(long x) { int v[2] = {x, 1}; qsort(v, 2, sizeof *v, order); BARRIER(); return jumps(v[0] + order(v, v)); }
OPAQUE long switches(long x) {
    switch (x & 7) {
    case 0: return leaf(x);
    case 1: return inner(x) * 2;
    case 2: BARRIER(); return x - 1;
    case 3: x = leaf(x) + 5; BARRIER(); return x;
    case 4: return jumps(x & 1);
    case 5: x ^= inner(x); BARRIER(); return x & 3;
    default: return x;
    }
}
OPAQUE long points(long x) { BARRIER(); return pointer(x + 1); }
OPAQUE long middle(long x) {
    long r = inner(x);
    BARRIER();
    for (int i = 0; i < 2; i++) { r += tails(x + i); BARRIER(); }
    r += jumps(r);
    BARRIER();
    r += points(r);
    BARRIER();
    r += switches(x) + ordered(x & 3);
    BARRIER();
    return r + recursive(5);
}
OPAQUE long outer(long x) { FLAG("orl $0x100"); long r = middle(x); BARRIER(); r += inner(r); FLAG("andl $~0x100"); return r; }
OPAQUE long around(long x) { long r = outer(x); BARRIER(); return r + leaf(x); }
#define NEAR 4096
static volatile long steps;
static volatile int at[NEAR];
OPAQUE void count(void) { steps++; BARRIER(); }
int run(int rounds);
#ifdef TRACE
static long lost;
/* Whether the interrupted function has been called by run. In outer, the trap flag's code moves the stack unseen. */
OPAQUE void trace(char *at) {
    void *frames[100];
    if (at >= (char *)outer && at < (char *)outer + 200) return;
    int len = backtrace(frames, 100), found = 0;
    for (int i = 0; i < len; i++) found |= (char *)frames[i] > (char *)run && (char *)frames[i] < (char *)run + 300;
    lost += !found;
}
#endif
OPAQUE void handler(int signal, siginfo_t *info, void *context) {
    unsigned long place = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] - (unsigned long)leaf;
    if (place < NEAR) at[place]++;
#ifdef TRACE
    trace((char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP]);
#endif
    count();
    BARRIER();
}
int run(int rounds) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
#ifdef TRACE
    trace(0);
    lost = 0;
#endif
    sigaction(SIGTRAP, &action, 0);
    long sum = 0;
    for (int i = 0; i < rounds; i++) sum += around(i);
    fprintf(stderr, "steps: %ld\n", steps);
#ifdef TRACE
    fprintf(stderr, "lost: %ld\n", lost);
#endif
    for (int i = 0; i < NEAR; i++) if (at[i]) fprintf(stderr, "at: %d %d\n", i, at[i]);
    return printf("%ld\n", sum) < 0;
}
#ifdef MAIN
int main(void) { return run(3); }
#endif
"#;

/// The functions that are stepped, apart from those of libraries.
const STEPPED: [&str; 14] = [
    "leaf", "inner", "tail", "tails", "compare", "cell", "recursive", "jumps", "order", "ordered", "switches", "points",
    "middle", "outer",
];

/// Returns the numbers in the lines of what the program said that begin with a word.
fn numbers(said: &str, word: &str) -> Vec<Vec<u64>> {
    let lines = said.lines().filter_map(|line| line.strip_prefix(word));
    lines.map(|line| line.split_whitespace().map(|n| n.parse().unwrap()).collect()).collect()
}

fn each_instruction_belongs_to_its_function() {
    let builds = [
        &["-O2"][..],
        &["-O0"],
        &["-Os", "-fcf-protection=full"],
        &["-O2", "-no-pie", "-fno-pie", "-fno-plt"],
        &["-O2", "-static"],
        &["-O1", "-falign-functions=1"],
    ];
    for flags in builds {
        let place = Place::new();
        let program = place.c("prog", STEPS, &[&["-DMAIN", "-g"], flags].concat());
        let program = Program::read(&program).unwrap();
        // With the last options, the stepped functions are deeper than calls are traced, and some of their calls have no cell.
        for options in [
            &["--libs", "none"][..],
            &["--libs", "all"],
            &["--count", "blocks"],
            &["--trace", "trace", "--trace-depth", "1"],
        ] {
            let outcome = same(&place, &[&["-q", "--hooks", "both"], options].concat(), &[]);
            let profile = gprofdata::read(&place.path("gmon.out")).unwrap();
            let name = |address| program.containing(address).map_or("?", |function| function.name());
            let mut charged = BTreeMap::<&str, u64>::new();
            let mut address_of_leaf = 0;
            for (&(from, to), &count) in &profile.arcs {
                if name(to) == "handler" {
                    *charged.entry(name(from)).or_default() += count;
                }
                if name(to) == "leaf" {
                    address_of_leaf = to;
                }
            }
            let what = format!("{flags:?} {options:?}: {charged:#?}");
            let said = outcome.stderr_text();
            assert_eq!(charged.values().sum::<u64>(), numbers(&said, "steps: ")[0][0], "{what}");
            let is_stepped = |name: &&str| STEPPED.contains(name);
            if !flags.contains(&"-static") {
                assert!(charged.keys().all(is_stepped), "{what}");
            }
            assert!(!["around", "run", "main", "handler", "count"].iter().any(|name| charged.contains_key(name)), "{what}");
            // In the function's own text, there is no doubt.
            let mut least = BTreeMap::<&str, u64>::new();
            for at in numbers(&said, "at: ") {
                *least.entry(name(address_of_leaf + at[0])).or_default() += at[1];
            }
            // Functions whose blocks are counted run in copies.
            assert!(least.len() > 3 || options[0] == "--count", "{what}");
            for (name, least) in least {
                assert!(charged.get(name).is_some_and(|&count| count >= least), "{name} {least} {what}");
            }
        }
    }
}

/// An unwinder that begins at any instruction of thunks and slow paths gets to the function that has called them all.
fn each_instruction_has_a_backtrace() {
    for flags in [&["-O2"][..], &["-O2", "-no-pie", "-fno-pie"], &["-Os"]] {
        let place = Place::new();
        place.c("prog", STEPS, &[&["-DMAIN", "-DTRACE", "-g"], flags].concat());
        for options in [&[][..], &["--trace", "trace", "--trace-depth", "1"]] {
            let outcome = same(&place, &[&["-q", "--hooks", "both", "--libs", "none"], options].concat(), &[]);
            let said = outcome.stderr_text();
            assert_eq!(numbers(&said, "lost: "), [[0]], "{flags:?} {options:?}");
            assert!(numbers(&said, "steps: ")[0][0] > 10_000, "{flags:?} {options:?}: {said}");
        }
    }
}

fn each_instruction_of_a_library() {
    for flags in [&["-O2"][..], &["-O2", "-fvisibility=hidden", "-DHIDDEN"]] {
        let place = Place::new();
        let source = format!("#ifdef HIDDEN\n__attribute__((visibility(\"default\"))) int run(int);\n#endif\n{STEPS}");
        let library = place.c("libsteps.so", &source, &[&["-g", "-fPIC", "-shared"], flags].concat());
        let main = "int run(int); int main(void) { return run(3); }";
        place.c("prog", main, &["-g", library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
        for libs in ["auto", "all"] {
            let outcome = same(&place, &["-q", "--hooks", "both", "--libs", libs], &[]);
            let calls = whole(&place);
            let charged: BTreeMap<&str, u64> = calls
                .iter()
                .filter(|((_, to), _)| to == "handler")
                .map(|((from, _), &count)| (from.as_str(), count))
                .collect();
            let what = format!("{flags:?} {libs}: {charged:#?}");
            assert_eq!(charged.values().sum::<u64>(), numbers(&outcome.stderr_text(), "steps: ")[0][0], "{what}");
            assert!(!["around", "run", "main", "handler", "count"].iter().any(|name| charged.contains_key(name)), "{what}");
            assert!(STEPPED.iter().all(|name| charged.contains_key(name)), "{what}");
        }
    }
}
