use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
static C: AtomicU32 = AtomicU32::new(0);
#[inline(never)] #[no_mangle] pub extern "C" fn fib(n: u32) -> u32 { C.fetch_add(1, Relaxed); if n < 2 { n } else { fib(n - 1) + fib(n - 2) } }
#[inline(never)] fn deep(n: u32) -> u32 { if n == 0 { panic!("found") } deep(n - 1) + 1 }
fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let caught = (1..200).filter(|&i| std::panic::catch_unwind(|| deep(i)).is_err()).count();
    let ts: Vec<_> = (0..4).map(|_| std::thread::spawn(|| fib(15))).collect();
    let s: u32 = ts.into_iter().map(|t| t.join().unwrap()).sum();
    let r = fib(20);
    println!("{} fib={} {} {}", r, C.load(Relaxed), caught, s);
}
