//! Damaged files: reading one yields an error or an image in a short time, and never panics.

use crate::build::{compile, folder, has};
use gprofinject_image::Image;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const C: &str = "static int (*table[3])(int); static int f(int x) { return x; } \
    int main(int n, char **v) { table[0] = f; switch (n) { case 0: return 4; case 1: return 9; case 2: return 8; \
    case 3: return 1; case 5: return 77; } return table[0](n); }";
const CXX: &str = "#include <string>\nint g(int); int f(int x) { std::string s(\"a\"); \
    try { return g(x); } catch (int y) { return y; } } int g(int x) { if (x > 1) throw x; return x; } \
    int main(int n, char **) { return f(n); }";

/// Returns the programs to damage. They are compiled only once, because the tests run in parallel.
fn samples() -> &'static [Vec<u8>] {
    static SAMPLES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    SAMPLES.get_or_init(compile_samples)
}

fn compile_samples() -> Vec<Vec<u8>> {
    let mut programs = vec![
        compile(&folder("hostile-pie"), "gcc", &[("a.c", C)], &["-O2"]),
        compile(&folder("hostile-exec"), "gcc", &[("a.c", C)], &["-O2", "-no-pie", "-fno-pie"]),
        compile(&folder("hostile-stripped"), "gcc", &[("a.c", C)], &["-O2", "-s"]),
        compile(&folder("hostile-pg"), "gcc", &[("a.c", C)], &["-O2", "-pg", "-finstrument-functions"]),
    ];
    if has("g++") {
        programs.push(compile(&folder("hostile-cxx"), "g++", &[("a.cc", CXX)], &["-O2"]));
    }
    let mut samples: Vec<Vec<u8>> = programs.iter().map(|program| std::fs::read(program).unwrap()).collect();
    let mut headless = samples[2].clone();
    headless[40..48].fill(0);
    headless[58..64].fill(0);
    samples.push(headless);
    samples
}

/// Adds up values from all parts of an image, so that every part is read.
fn read(bytes: &[u8]) -> usize {
    let start = Instant::now();
    let mut image = Image::read(bytes);
    if let Ok(image) = &mut image {
        image.remove_profiling(true);
    }
    let taken = start.elapsed();
    assert!(taken < Duration::from_secs(2), "took {taken:?}");
    match image {
        Ok(image) => {
            assert!(image.functions.windows(2).all(|pair| pair[0].limit <= pair[1].address));
            for function in &image.functions {
                assert!(function.size > 0 && function.size <= function.limit - function.address);
                assert!(image.code_at(function.address, function.limit - function.address).is_some());
            }
            image.functions.len()
        }
        Err(error) => error.to_string().len(),
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[test]
fn truncated() {
    for sample in samples() {
        let mut len = 0;
        while len < sample.len() {
            read(&sample[..len]);
            // This tries every length within the headers, and many greater ones.
            len += if len < 1200 { 1 } else { 61 };
        }
    }
}

#[test]
fn flipped() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for sample in samples() {
        for _ in 0..3000 {
            let mut bytes = sample.clone();
            for _ in 0..=random.below(8) {
                let at = random.below(bytes.len());
                bytes[at] = random.below(256) as u8;
            }
            read(&bytes);
        }
    }
}

/// Damages the parts that control how the rest is read: headers, and tables of addresses and lengths.
#[test]
fn flipped_where_it_hurts() {
    let extremes: [u64; 8] = [0, 1, 7, 0x7fff_ffff_ffff_ffff, u64::MAX, u64::MAX - 7, 1 << 47, 0xffff_ffff];
    let mut random = Random(0x1234_5678_9abc_def1);
    for sample in samples() {
        let mut places = vec![(0, 64)];
        let u64_at = |at: usize| u64::from_le_bytes(sample[at..at + 8].try_into().unwrap()) as usize;
        places.push((u64_at(32), 56 * usize::from(sample[56])));
        places.push((u64_at(40), 64 * usize::from(sample[60])));
        // These are the contents of the sections, except code and debugging information.
        for header in (0..usize::from(sample[60])).map(|index| u64_at(40) + 64 * index) {
            let (kind, offset, len) = (sample[header + 4], u64_at(header + 24), u64_at(header + 32));
            if kind != 8 && len > 0 && offset + len <= sample.len() {
                places.push((offset, len));
            }
        }
        for _ in 0..6000 {
            let mut bytes = sample.clone();
            let (start, len) = places[random.below(places.len())];
            if len < 8 {
                continue;
            }
            let at = (start + random.below(len)).min(bytes.len() - 8);
            match random.below(3) {
                0 => bytes[at] = random.below(256) as u8,
                1 => {
                    let at = at & !7;
                    bytes[at..at + 8].copy_from_slice(&extremes[random.below(extremes.len())].to_le_bytes());
                }
                _ => {
                    let at = at & !3;
                    bytes[at..at + 4].copy_from_slice(&(extremes[random.below(8)] as u32).to_le_bytes());
                }
            }
            read(&bytes);
        }
    }
}
