// Functions whose arguments gdb prints.
use std::hint::black_box;

#[derive(Clone, Copy)]
pub enum Colour {
    Red = 1,
    Blue = 200,
}
pub struct Large {
    pub a: u64,
    pub b: u64,
    pub c: u64,
}
pub trait Named {
    fn size(&self, factor: u32, extra: i8) -> u64;
}
impl Named for Large {
    #[inline(never)]
    fn size(&self, factor: u32, extra: i8) -> u64 {
        black_box(self.a + self.b + self.c + u64::from(factor)).wrapping_add_signed(extra.into())
    }
}

#[inline(never)]
pub fn integers(a: i8, b: u8, c: i16, d: u16, e: i32, f: u32, g: i64, h: u64, i: usize) -> u64 {
    black_box((a, b, c, d, e, f, g, h, i));
    h
}
#[inline(never)]
pub fn mixture(a: bool, b: f32, c: f64, d: char, e: *const u8, f: &u32, g: i16) -> f64 {
    black_box((a, b, c, d, e, f, g));
    c
}
#[inline(never)]
pub fn strings(a: &str, b: u32, c: &[u16], d: u8) -> usize {
    black_box((a, b, c, d));
    a.len()
}
#[inline(never)]
pub fn large(a: u32, b: f64, c: i8) -> Large {
    black_box((a, b, c));
    Large { a: a.into(), b: 1, c: 2 }
}
#[inline(never)]
pub fn colours(a: Colour, b: (), c: u16, d: &dyn Named, e: u8) -> Colour {
    black_box((b, c, d.size(1, 1), e));
    a
}
pub struct Wrapped(u32, ());
pub struct Twice(Wrapped);
#[repr(C)]
pub struct LikeC {
    pub a: i64,
}
#[inline(never)]
pub fn wrapped(a: Twice, b: u8, c: LikeC, d: std::ptr::NonNull<u8>, e: i16) -> Wrapped {
    black_box((a.0.0, b, c.a, d, e));
    a.0
}
#[inline(never)]
pub fn unnamed(_: u16, a: u8, _: &str, b: i32) -> i32 {
    black_box((a, b));
    b
}
#[inline(never)]
pub fn many(a: u8, b: u16, c: u32, d: u64, e: i8, f: i16, g: i32, h: i64, i: f32, j: u8) -> i32 {
    black_box((a, b, c, d, e, f, g, h, i, j));
    g
}
// A function's own type has no contents, and is not passed; a pointer to it is.
#[inline(never)]
pub fn applied<F: Fn(i32) -> i32>(before: i16, function: F, number: i32, small: u8) -> i32 {
    black_box((before, number, small));
    function(number)
}
#[inline(never)]
fn negative(number: i32) -> i32 {
    -number
}

fn main() {
    let count = std::env::args().count();
    let l = large(black_box(1), black_box(2.5), black_box(-3));
    black_box(integers(-1, 200, -300, 60_000, -70_000, 4_000_000_000, -5_000_000_000, 10_000_000_000_000_000_000, count));
    black_box(mixture(black_box(true), black_box(1.5), black_box(-2.25), black_box('é'), black_box(&1), &7, black_box(-5)));
    black_box(strings(black_box("text"), black_box(3), black_box(&[1, 2]), black_box(4)));
    black_box(colours(black_box(Colour::Blue), (), black_box(9), &l, black_box(8)));
    black_box(colours(black_box(Colour::Red), (), black_box(9), &l, black_box(8)));
    black_box(applied(black_box(-13), negative, black_box(14), black_box(15)));
    black_box(applied(black_box(-16), negative as fn(i32) -> i32, black_box(17), black_box(18)));
    let mut byte = 1;
    let address = std::ptr::NonNull::from(&mut byte);
    black_box(wrapped(Twice(Wrapped(black_box(5), ())), black_box(6), LikeC { a: black_box(-7) }, address, black_box(-8)).0);
    black_box(unnamed(black_box(1), black_box(2), black_box("x"), black_box(-4)));
    black_box(many(1, 2, 3, 4, -5, -6, -7, -8, 9.5, black_box(10)));
    let n: Box<dyn Named> = Box::new(l);
    black_box(n.size(black_box(11), black_box(-12)));
}
