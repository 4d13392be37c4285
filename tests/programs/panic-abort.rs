// A panic in a program in which panics abort.
//# flags: -Cpanic=abort
//# others: allowed
//# exit: 134
//# arc: run -> fail 2
//# callgrind: no, it prints of the signal and ends otherwise
use std::hint::black_box;

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
fn run() {
    black_box(fail(0));
    black_box(fail(1));
}

fn main() {
    std::panic::set_hook(Box::new(|_| ()));
    let _ = std::panic::catch_unwind(run);
}
