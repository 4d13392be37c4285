// Rust's backtraces: as deep as without hooks, with the same names.
//# callgrind: no, it reads its own mappings, which are others there
//# others: allowed
//# arc: down -> capture 2
//# stdout: 31 downs
//# stdout: 1 downs
use std::backtrace::Backtrace;
use std::hint::black_box;

#[unsafe(no_mangle)]
#[inline(never)]
fn capture() -> String {
    black_box(Backtrace::force_capture().to_string())
}

#[unsafe(no_mangle)]
#[inline(never)]
fn down(n: u32) -> String {
    let text = if black_box(n) == 0 { capture() } else { down(n - 1) };
    black_box(text)
}

fn main() {
    for depth in [30, 0] {
        let text = down(black_box(depth));
        // All of it is compared with that of a run without hooks.
        eprintln!("{text}");
        println!("{} downs", text.lines().filter(|l| l.trim_end().ends_with(": down")).count());
    }
}
