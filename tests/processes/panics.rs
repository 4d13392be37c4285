//! A Rust program to attach to: threads that panic and catch it, one of them in the function that loops. It reads
//! commands as attached.cc does.
use std::io::BufRead;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);
static SINK: AtomicU64 = AtomicU64::new(0);

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn step() {
    SINK.fetch_add(1, Ordering::Relaxed);
}

struct Cleaned<'a>(&'a mut u32);

impl Drop for Cleaned<'_> {
    fn drop(&mut self) {
        *self.0 += 1;
        // Another panic during the clean-up, which is caught there.
        let inner = panic::catch_unwind(|| may_panic(2 * *self.0 + 1));
        assert_eq!(*inner.unwrap_err().downcast::<usize>().unwrap() as u32, 2 * *self.0 + 1);
    }
}

#[inline(never)]
fn may_panic(n: u32) -> u32 {
    let text = "x".repeat(n as usize);
    if n % 2 == 1 {
        panic::resume_unwind(Box::new(text.len()));
    }
    text.len() as u32
}

#[inline(never)]
fn through(n: u32, cleaned: &mut u32) -> u32 {
    let _guard = Cleaned(cleaned);
    may_panic(n) + 1
}

fn caught(n: u32) -> u32 {
    let mut cleaned = 0;
    let result = panic::catch_unwind(AssertUnwindSafe(|| through(n, &mut cleaned)));
    assert_eq!(cleaned, 1);
    match result {
        Ok(value) => value,
        Err(payload) => *payload.downcast::<usize>().unwrap() as u32,
    }
}

/// Never leaves the function in which panics are caught.
fn loops() -> u32 {
    let mut n = 0;
    loop {
        let result = panic::catch_unwind(|| {
            if n % 3 == 0 {
                panic::resume_unwind(Box::new(n));
            }
            may_panic(2 * (n % 5))
        });
        assert_eq!(result.is_err(), n % 3 == 0);
        n += 1;
        if STOP.load(Ordering::Relaxed) {
            return u32::from(n > 0);
        }
    }
}

fn main() {
    let looping = std::thread::spawn(loops);
    let working = std::thread::spawn(|| {
        while !STOP.load(Ordering::Relaxed) {
            let made = std::thread::spawn(|| (0..20).map(caught).sum::<u32>());
            assert_eq!(made.join().unwrap(), 20 * 19 / 2 + 10);
        }
        1
    });
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        for _ in 0..line.unwrap().parse::<u32>().unwrap() {
            step();
        }
        println!("done");
    }
    STOP.store(true, Ordering::Relaxed);
    println!("the end {}", looping.join().unwrap() + working.join().unwrap());
}
