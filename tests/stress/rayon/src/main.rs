//! Parallel sort, nested joins, and a parallel sieve: one line that does not depend on the schedule.
use rayon::prelude::*;

#[inline(never)]
fn mix(x: u64) -> u64 {
    let mut x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 29;
    x.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (x >> 32)
}

fn fib(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let (a, b) = rayon::join(|| fib(n - 1), || fib(n - 2));
    a + b
}

#[inline(never)]
fn is_prime(n: u64) -> bool {
    n > 1 && (2..).take_while(|d| d * d <= n).all(|d| n % d != 0)
}

fn main() {
    let rounds: u64 = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(10);
    let mut sum = 0u64;
    for round in 0..rounds {
        let mut v: Vec<u64> = (0..400_000u64).into_par_iter().map(|i| mix(i ^ round)).collect();
        v.par_sort_unstable();
        sum = v.iter().step_by(1000).fold(sum, |s, x| mix(s ^ x));
        sum = mix(sum ^ fib(25));
        sum = mix(sum ^ (0..100_000u64).into_par_iter().filter(|&n| is_prime(n + round)).count() as u64);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
        sum = mix(sum ^ pool.install(|| fib(18)));
    }
    println!("{sum:016x}");
}
