// Rust: its own calling convention, closures through vtables, and the standard library around it.
//# others: allowed
//# arc: run -> leaf 100
//# arc: run -> recurse 1
//# arc: recurse -> recurse 50
//# arc: run -> pair 10
//# stdout: 5050 50 45
use std::hint::black_box;

#[unsafe(no_mangle)]
#[inline(never)]
fn leaf(x: u64) -> u64 {
    black_box(x) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
fn recurse(n: u32) -> u32 {
    let below = if black_box(n) == 0 { 0 } else { recurse(n - 1) + 1 };
    black_box(below)
}

// Comes back in registers that C knows nothing of.
#[unsafe(no_mangle)]
#[inline(never)]
fn pair(a: u64) -> (u64, Option<u64>) {
    (black_box(a), if black_box(true) { Some(a) } else { None })
}

#[unsafe(no_mangle)]
#[inline(never)]
fn run() -> (u64, u32, u64) {
    let mut sum = 0;
    for i in 0..100 {
        sum += leaf(i);
    }
    let mut pairs = 0;
    for i in 0..10 {
        let (a, b) = pair(i);
        assert_eq!(Some(a), b);
        pairs += a;
    }
    (sum, recurse(50), pairs)
}

fn main() {
    let (a, b, c) = black_box(run as fn() -> (u64, u32, u64))();
    println!("{a} {b} {c}");
}
