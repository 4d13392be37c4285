// Functions that take references to strings. What a trace has of each call is in the comment before the function.
use std::hint::black_box;

pub struct Named<'a> {
    pub name: &'a String,
    pub n: i32,
}

// owned(a="owned", n=1, b="longer than the others") = 40
#[inline(never)]
pub fn owned(a: &String, n: u32, b: &mut String) -> usize {
    b.push_str(", and growing");
    black_box(a.len() + b.len() + n as usize) - 1
}
// references(a="twice", b="", n=2) = 7
#[inline(never)]
pub fn references(a: &&str, b: &&mut str, n: usize) -> usize {
    black_box((a, b, n));
    a.len() + n
}
// slices(a="cut", n=3) = 6
#[inline(never)]
pub fn slices(a: &str, n: usize) -> usize {
    black_box((a, n));
    a.len() + n
}

fn main() {
    let mut text = String::with_capacity(100);
    text.push_str("longer than the others");
    black_box(owned(&black_box("owned".to_owned()), black_box(1), &mut text));
    let (mut none, cut) = (String::new(), "cut off".to_owned());
    black_box(references(&black_box("twice"), &none.as_mut_str(), black_box(2)));
    black_box(slices(&cut[..3], black_box(3)));
    let named = Named { name: &cut, n: 1 };
    black_box((named.name, named.n));
}
