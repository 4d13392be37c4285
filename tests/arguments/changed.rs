// Functions that the compiler makes with fewer or other parameters than the source has. Each prints those that it uses.
use std::hint::black_box;

pub struct Point {
    pub x: i64,
    pub y: i32,
}

#[inline(never)]
fn removed(used: u32, _unused: u64, also: i64, last: f64) -> u32 {
    println!("removed used={used} also={also} last={}", last.to_bits());
    used
}
#[inline(never)]
fn constant(a: i32, always: u8, d: f64) -> i32 {
    println!("constant a={a} d={}", d.to_bits());
    a * i32::from(always)
}
#[inline(never)]
fn pointed(p: &Point, n: i16) -> i64 {
    println!("pointed n={n}");
    p.x + i64::from(n)
}
#[inline(never)]
fn without_result(a: i16, b: u8) -> u64 {
    println!("without_result a={a} b={b}");
    black_box(7)
}
#[inline(never)]
fn texts(text: &str, _unused: u64, is_up: bool, last: u8) -> usize {
    println!("texts text={:p} is_up={} last={last}", text.as_ptr(), u8::from(is_up));
    text.len() + usize::from(is_up)
}
#[inline(never)]
fn only_length(text: &str, last: u8) -> usize {
    println!("only_length last={last}");
    black_box(text.len())
}
// Its convention is fixed, but calls need not pass what it ignores.
#[no_mangle]
#[inline(never)]
pub fn exported_length(text: &str, _unused: u32, last: u8) -> usize {
    println!("exported_length last={last}");
    black_box(text.len())
}
// No convention says where an object is, nor what comes after it; debug information does.
#[inline(never)]
fn behind_object(object: Point, n: u32, text: &str, last: f64) -> i64 {
    println!("behind_object n={} last={}", black_box(n), black_box(last).to_bits());
    object.x + i64::from(object.y) + text.as_bytes().iter().map(|byte| i64::from(*byte)).sum::<i64>()
}
#[inline(never)]
pub fn unchanged(a: i32, b: u64, c: f64) -> i32 {
    println!("unchanged a={a} b={b} c={}", c.to_bits());
    black_box(a)
}

fn main() {
    let n = std::env::args().count() as u32;
    let p = Point { x: n.into(), y: 3 };
    black_box(removed(n, 5, 6, f64::from(n) + 0.25) + removed(n + 7, 5, -8, -1.0));
    black_box(constant(n as i32 + 1, 3, f64::from(n) * 1.5) + constant(-(n as i32), 3, 0.125));
    black_box(pointed(&p, n as i16 + 9));
    without_result(n as i16 - 10, n as u8 + 200);
    without_result(-(n as i16), 3);
    black_box(unchanged(n as i32 - 5, u64::from(n) + (1 << 40), f64::from(n) - 0.5));
    black_box(p.y);
    let arguments: Vec<String> = std::env::args().collect();
    for i in 0..3 {
        let object = Point { x: i, y: n as i32 };
        black_box(behind_object(object, n + i as u32 * 3, &arguments[0][i as usize..], i as f64 * 0.75));
    }
    for argument in arguments.iter().chain(&arguments) {
        black_box(only_length(argument, n as u8 + 60) + exported_length(&argument[1..], n + 4, n as u8 + 70));
    }
    black_box(texts(&arguments[0], 3, n == 1, n as u8 + 40) + texts(&arguments[0][1..], 4, n == 7, 255));
}
