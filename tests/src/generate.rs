//! Generates programs and data that are too large to store.

use std::fmt::Write;

/// Returns the C source of a program with `functions` functions of usual shapes, each called once by main,
/// and the line that the program prints. Every function calls `fan_out` others once, so it has so many arcs.
///
/// Function `i` calls only functions of the last tenth, which call nothing. [`many_functions_arcs`] lists the
/// arcs.
pub fn many_functions(functions: usize, fan_out: usize) -> String {
    let mut source = String::from("#include <stdio.h>\n#define OPAQUE __attribute__((noinline))\n");
    source += "static volatile int sink;\n";
    let leaves = leaves(functions);
    for i in (0..functions).rev() {
        if i >= functions - leaves {
            // Leaves of different sizes, the shortest with a few bytes.
            let body = match i % 4 {
                0 => "return x;".to_string(),
                1 => format!("return x + {i};"),
                2 => format!("sink = x; return x ^ {i};"),
                _ => format!("for (int i = 0; i < (x & 3); i++) sink += {i}; return x;"),
            };
            let _ = writeln!(source, "OPAQUE int f{i}(int x) {{ asm volatile(\"\"); {body} }}");
            continue;
        }
        let _ = write!(source, "OPAQUE int f{i}(int x) {{ asm volatile(\"\"); int r = x; ");
        for k in 0..fan_out {
            let _ = write!(source, "r += f{}(r); ", callee(functions, i, k));
        }
        let _ = writeln!(source, "asm volatile(\"\" : \"+r\"(r)); return r; }}");
    }
    // main is split, because compilers take very long for one function with so many calls.
    let callers = functions - leaves;
    for (slice, first) in (0..callers).step_by(SLICE).enumerate() {
        let _ = write!(source, "OPAQUE void slice{slice}(void) {{ ");
        for i in first..(first + SLICE).min(callers) {
            let _ = write!(source, "sink = f{i}(1); ");
        }
        let _ = writeln!(source, "}}");
    }
    source += "int main(void) { ";
    for slice in 0..callers.div_ceil(SLICE) {
        let _ = write!(source, "slice{slice}(); ");
    }
    source += "puts(\"done\"); return 0; }\n";
    source
}

const SLICE: usize = 500;

fn leaves(functions: usize) -> usize {
    (functions / 10).max(1)
}

/// Returns the k-th function that function `caller` calls. All are different for k below a tenth of
/// `functions`.
fn callee(functions: usize, caller: usize, k: usize) -> usize {
    let leaves = leaves(functions);
    functions - leaves + (caller * 7 + k) % leaves
}

/// Returns the arcs of [`many_functions`]' program, by name: caller, callee, count.
pub fn many_functions_arcs(functions: usize, fan_out: usize) -> Vec<(String, String, u64)> {
    let callers = functions - leaves(functions);
    let mut arcs = vec![("_start".to_string(), "main".to_string(), 1)];
    for slice in 0..callers.div_ceil(SLICE) {
        arcs.push(("main".into(), format!("slice{slice}"), 1));
    }
    for i in 0..callers {
        arcs.push((format!("slice{}", i / SLICE), format!("f{i}"), 1));
        for k in 0..fan_out {
            arcs.push((format!("f{i}"), format!("f{}", callee(functions, i, k)), 1));
        }
    }
    arcs
}

/// Returns the C source of library `module` of a program with many libraries: `functions` functions of usual shapes and
/// sizes, a third of them exported, the others static. Nearly all of them call others.
///
/// The exported function `m<module>_f<i>`, where `i` is a multiple of 3, takes and returns an int.
pub fn library_of_many(module: usize, functions: usize) -> String {
    let mut source = String::from(
        "#include <string.h>\n#define OPAQUE __attribute__((noinline))\n\
         struct item { int kind, size; double weight; char name[24]; struct item *next; };\n\
         static struct item pool[16];\nstatic volatile int sink;\n",
    );
    let name = |i: usize| format!("m{module}_f{i}");
    for i in 0..functions {
        let linkage = if i % 3 == 0 { "" } else { "static " };
        // Calls lead to functions with smaller numbers, so that they end.
        let callee = |by: usize| name(i.saturating_sub(1 + (i * 7 + by * 13) % 61));
        let (one, two) = (callee(0), callee(1));
        let body = match i % 8 {
            _ if i < 8 => format!("return x * {i} + 1;"),
            0 => format!("if (x > {i}) return {one}(x >> 3); pool[x & 15].kind = x; return x + {i};"),
            1 => format!(
                "int s = x; for (int k = 0; k < (x & 7); k++) {{ s += pool[k].size ^ k; \
                 pool[(k + s) & 15].size = s; }} return s & 64 ? {one}(s >> 4) : s;"
            ),
            2 => format!(
                "switch (x & 15) {{ case 0: return x + 1; case 1: sink = x; return 7; case 2: return {one}(x / 5); \
                 case 3: case 4: return x ^ {i}; case 5: pool[1].kind++; return 3; case 6: return sink; \
                 case 7: return {two}(x / 9); case 9: return x * 77; default: return x - 1; }}"
            ),
            3 => format!(
                "char text[40]; memset(text, x, sizeof text); memcpy(pool[x & 15].name, text, 23); \
                 text[39] = 0; return (int)strlen(text) + (x > 9999999 ? {one}(x >> 9) : 0);"
            ),
            4 => format!(
                "double w = x * 0.5; for (struct item *p = &pool[x & 15]; p; p = p->next) w += p->weight * {i}; \
                 pool[x & 15].weight = w * 0.001; return w > 1e9 ? {one}(x >> 2) : (int)w;"
            ),
            5 => format!("return {one}(x >> 1) + {two}(x >> 2) * 3;"),
            6 => format!(
                "int v[8] = {{0}}; for (int k = 0; k < 8; k++) v[k] = x >> k; if (x < 0) return -1; \
                 for (int k = 1; k < 8; k++) if (v[k] > v[k - 1]) {{ int t = v[k]; v[k] = v[k - 1]; v[k - 1] = t; }} \
                 sink = v[3]; return x > 99999 ? {one}(v[0] >> 5) : v[7];"
            ),
            _ => format!("return {one}(x >> 4);"),
        };
        let _ = writeln!(source, "OPAQUE {linkage}int {}(int x) {{ asm volatile(\"\"); {body} }}", name(i));
    }
    // Keeps the static functions that no other function calls.
    let _ = write!(source, "int (*m{module}_table[])(int) = {{");
    for i in (0..functions).filter(|i| i % 3 != 0) {
        let _ = write!(source, "{}, ", name(i));
    }
    source += "};\n";
    source
}

/// Returns the C source of the program that uses the libraries `0..modules` of [`library_of_many`].
///
/// `PROGRAM THREADS CALLS` starts as many threads, each of which calls as many exported functions of all libraries,
/// different ones from thread to thread. When all of them have done so and still exist, the program prints the memory of
/// the process in KiB, `Pss` and the sum of what is private, from `/proc/self/smaps_rollup`.
pub fn program_of_many(modules: usize, functions: usize) -> String {
    let mut source = String::from(
        "#include <pthread.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
         static int calls;\nstatic pthread_barrier_t called, shown;\n",
    );
    let exported: Vec<String> = (0..modules)
        .flat_map(|m| (0..functions).step_by(3 * EXPORTED_STEP).map(move |i| format!("m{m}_f{i}")))
        .collect();
    for name in &exported {
        let _ = writeln!(source, "int {name}(int);");
    }
    let _ = writeln!(source, "static int (*const all[])(int) = {{ {} }};", exported.join(", "));
    source += r#"
static void *work(void *argument) {
    long n = (long)argument;
    int sum = 0;
    for (int i = 0; i < calls; i++)
        sum += all[(unsigned long)(n * 7919 + i * 104729L) % (sizeof all / sizeof *all)](i);
    pthread_barrier_wait(&called);
    pthread_barrier_wait(&shown);
    return (void *)(long)(sum & 1);
}
static void show(void) {
    char line[256];
    long pss = 0, own = 0, part;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "Pss: %ld", &part) == 1) pss = part;
        if (sscanf(line, "Private_Clean: %ld", &part) == 1 || sscanf(line, "Private_Dirty: %ld", &part) == 1)
            own += part;
    }
    if (file) fclose(file);
    printf("%ld %ld\n", pss, own);
}
int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    calls = argc > 2 ? atoi(argv[2]) : 0;
    pthread_t *started = calloc(threads + 1, sizeof *started);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 17);
    pthread_barrier_init(&called, 0, threads + 1);
    pthread_barrier_init(&shown, 0, threads + 1);
    for (long i = 0; i < threads; i++)
        if (pthread_create(&started[i], &small, work, (void *)i)) return 1;
    pthread_barrier_wait(&called);
    show();
    pthread_barrier_wait(&shown);
    for (int i = 0; i < threads; i++) pthread_join(started[i], 0);
    return 0;
}
"#;
    source
}

/// The program names every n-th exported function, so that the dynamic linker's own time stays usual.
const EXPORTED_STEP: usize = 20;

/// Returns bytes that compress by about a half, the same in each call.
pub fn compressible(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let words: Vec<Vec<u8>> =
        (0..400).map(|_| (0..2 + random() % 9).map(|_| b'a' + (random() % 26) as u8).collect()).collect();
    let mut data = Vec::with_capacity(length + 16);
    while data.len() < length {
        data.extend(&words[(random() % 400) as usize]);
        data.push(b' ');
    }
    data.truncate(length);
    data
}

/// Returns a generator of numbers for damaging files, with the same sequence for the same seed.
pub fn random_numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Returns the first seed for random tests. `GPROFINJECT_FUZZ_SEED` sets another one, for a longer run.
pub fn first_seed() -> u64 {
    std::env::var("GPROFINJECT_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0)
}
