// A panic in a destructor while another panic unwinds: abort.
//# others: allowed
//# exit: 134
//# arc: run -> fail 1
//# callgrind: no, it prints of the signal and ends otherwise
//# stdout: dropped
use std::hint::black_box;
use std::io::Write;

#[unsafe(no_mangle)]
#[inline(never)]
fn fail(x: u32) -> u32 {
    if black_box(x) > 0 {
        panic!("{x}");
    }
    x
}

struct Guard;
impl Drop for Guard {
    #[inline(always)]
    fn drop(&mut self) {
        std::io::stdout().write_all(b"dropped\n").ok();
        panic!("again");
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
fn run() {
    let _guard = Guard;
    black_box(fail(1));
}

fn main() {
    std::panic::set_hook(Box::new(|_| ()));
    let _ = std::panic::catch_unwind(run);
}
