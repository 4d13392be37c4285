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
