// Panics: caught, resumed, and in threads that are joined.
//# others: allowed
//# arc: run -> attempt 100
//# arc: inner -> fail 100
//# arc: run -> resumed 100
//# arc: again -> leaf 100
//# arc: worker -> fail 20
//# arc: run -> leaf 100
//# stdout: 100 100 20 140
use std::hint::black_box;
use std::panic::{catch_unwind, resume_unwind, set_hook};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

static DROPPED: AtomicU32 = AtomicU32::new(0);

struct Guard;
impl Drop for Guard {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Relaxed);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
fn fail(x: u32) -> u32 {
    if black_box(x) > 0 {
        panic!("{x}");
    }
    x
}

#[unsafe(no_mangle)]
#[inline(never)]
fn leaf(x: u32) -> u32 {
    black_box(x) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
fn inner(x: u32) -> u32 {
    let _guard = Guard;
    black_box(fail(x)) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
fn attempt(x: u32) -> bool {
    catch_unwind(|| inner(x)).is_err()
}

#[unsafe(no_mangle)]
#[inline(never)]
fn again() {
    if let Err(payload) = catch_unwind(|| resume_unwind(Box::new(7_u32))) {
        black_box(leaf(1));
        resume_unwind(payload);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
fn resumed() -> bool {
    matches!(catch_unwind(again), Err(p) if p.downcast_ref() == Some(&7_u32))
}

#[unsafe(no_mangle)]
#[inline(never)]
fn worker() -> u32 {
    let _two = (Guard, Guard);
    black_box(fail(3))
}

#[unsafe(no_mangle)]
#[inline(never)]
fn run() -> (u32, u32, u32) {
    let (mut a, mut b, mut c) = (0, 0, 0);
    for i in 1..=100 {
        a += u32::from(attempt(black_box(i)));
        b += u32::from(resumed());
        black_box(leaf(i));
    }
    for _ in 0..20 {
        c += u32::from(std::thread::spawn(worker).join().is_err());
    }
    (a, b, c)
}

fn main() {
    set_hook(Box::new(|_| ()));
    let (a, b, c) = black_box(run as fn() -> (u32, u32, u32))();
    println!("{a} {b} {c} {}", DROPPED.load(Relaxed));
}
