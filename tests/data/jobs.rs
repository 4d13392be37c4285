// Threads that take jobs from channels, and panics that are caught. Each thread keeps a log of its calls and writes it to log.N.
use std::cell::RefCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

#[derive(Clone, Copy, Debug)]
pub enum Job {
    Add(i32),
    Text(&'static str),
    Fail,
}
#[derive(Clone, Copy, PartialEq)]
pub enum Colour {
    Red,
    Green = 5,
    Blue,
}

static NEXT: AtomicUsize = AtomicUsize::new(0);
thread_local! { static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) }; }
#[inline(always)]
fn log(what: &str) {
    LOG.with(|log| log.borrow_mut().push(what.to_owned()));
}
fn flush() {
    let lines = LOG.with(|log| log.borrow().join("\n"));
    let n = NEXT.fetch_add(1, Ordering::SeqCst);
    std::fs::write(format!("log.{n}"), lines).unwrap();
}

#[inline(never)]
#[no_mangle]
pub fn add(a: i32, b: u64) -> i64 {
    log("> add");
    let r = black_box(a as i64 + b as i64);
    log("< add");
    r
}
#[inline(never)]
#[no_mangle]
pub fn greet(name: &str, n: u8) -> usize {
    log("> greet");
    let r = black_box(name.bytes().fold(n as usize, |sum, byte| sum + byte as usize));
    log("< greet");
    r
}
#[inline(never)]
#[no_mangle]
pub fn paint(c: Colour, bright: bool) -> Colour {
    log("> paint");
    let r = black_box(if bright { c } else { Colour::Blue });
    log("< paint");
    r
}
#[inline(never)]
#[no_mangle]
pub fn fails(n: i32) -> i32 {
    log("> fails");
    if black_box(n) % 2 == 0 {
        panic!("even");
    }
    log("< fails");
    n
}
#[inline(never)]
#[no_mangle]
pub fn between(n: i32) -> i32 {
    log("> between");
    let r = fails(n) + 1;
    log("< between");
    black_box(r)
}
#[inline(never)]
#[no_mangle]
pub fn catches(n: i32) -> bool {
    log("> catches");
    let r = std::panic::catch_unwind(|| between(n)).is_ok();
    log("< catches");
    black_box(r)
}
#[inline(never)]
#[no_mangle]
pub fn handle(job: Job, n: i32) -> i64 {
    log("> handle");
    let r = match job {
        Job::Add(a) => add(a, 7),
        Job::Text(t) => greet(t, 3) as i64,
        Job::Fail => catches(n) as i64,
    };
    log("< handle");
    black_box(r)
}
#[inline(never)]
#[no_mangle]
pub fn worker(jobs: &mpsc::Receiver<(Job, i32)>) -> i64 {
    log("> worker");
    let mut sum = 0;
    while let Ok((job, n)) = jobs.recv() {
        sum += handle(job, n);
    }
    log("< worker");
    black_box(sum)
}
fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let rounds: i32 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(50);
    let threads: Vec<_> = (0..3)
        .map(|i| {
            let (to, jobs) = mpsc::channel();
            let thread = std::thread::spawn(move || {
                let s = worker(&jobs);
                flush();
                s
            });
            (i, to, thread)
        })
        .collect();
    for n in 0..rounds {
        for (i, to, _) in &threads {
            let job = match (n + i) % 3 {
                0 => Job::Add(n - 5),
                1 => Job::Text(["a", "hello", "wörld"][n as usize % 3]),
                _ => Job::Fail,
            };
            to.send((job, n)).unwrap();
        }
    }
    let mut sum = 0;
    for (_, to, thread) in threads {
        drop(to);
        sum += thread.join().unwrap();
    }
    let c = paint(Colour::Green, true);
    let d = paint(Colour::Red, false);
    sum += add(-3, 1 << 40);
    sum += (c == Colour::Green) as i64 + (d == Colour::Blue) as i64;
    println!("{sum}");
    flush();
}
