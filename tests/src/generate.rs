//! Programs and data that are too large to keep: written out when a test needs them.

use std::fmt::Write;

/// C source of `functions` functions of the usual shapes, each called once by main, and the line that it
/// prints. Every function calls `fan_out` others once: that many arcs each.
///
/// Function `i` only calls functions of the last tenth, which call nothing: the arcs are listed by
/// [`many_functions_arcs`].
pub fn many_functions(functions: usize, fan_out: usize) -> String {
    let mut source = String::from("#include <stdio.h>\n#define OPAQUE __attribute__((noinline))\n");
    source += "static volatile int sink;\n";
    let leaves = leaves(functions);
    for i in (0..functions).rev() {
        if i >= functions - leaves {
            // Leaves of different sizes, the shortest of a few bytes.
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
    // main in slices: one function of that many calls takes the compiler forever.
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

/// The k-th function that function `caller` calls; all different for k below a tenth of `functions`.
fn callee(functions: usize, caller: usize, k: usize) -> usize {
    let leaves = leaves(functions);
    functions - leaves + (caller * 7 + k) % leaves
}

/// (caller, callee, count) of [`many_functions`]' program, by name.
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

/// Bytes that compress by about a half, the same each time.
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

/// A sequence of numbers to corrupt files with: the same for the same seed.
pub fn random_numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Where fuzzing begins: a longer run begins elsewhere with `GPROFINJECT_FUZZ_SEED`.
pub fn first_seed() -> u64 {
    std::env::var("GPROFINJECT_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0)
}
