//! Functions written by hand: what is read of their calls is what their source passes.

use super::library::{Decoded, Library, decoded};
use gprofinject_image::signatures::{Place, Rest, Shape, Signatures};

const CPP: &str = r#"
#include "capture.c"
#include <string>
#include <string_view>
#include <memory>
#include <utility>

struct Trivial { int a; double b; };
struct WithDestructor { long value; ~WithDestructor() {} };
struct Defaulted { long value; ~Defaulted() = default; Defaulted(const Defaulted &) = default; Defaulted(long v) : value(v) {} };
struct Inherits : Trivial { float c; };
struct Empty {};
struct Virtual { long value; virtual int get() const; virtual ~Virtual() {} };
int Virtual::get() const { return value; }
struct MoveOnly { std::unique_ptr<int> p; };
enum class Colour : unsigned char { Red = 1, Blue = 200 };
struct S {
    long number;
    __attribute__((noinline)) int method(int x, const char *text) const { asm volatile(""); return number + x + !*text; }
    static __attribute__((noinline)) int fixed(int x) { asm volatile(""); return x; }
};
#define KEEP __attribute__((noinline))
KEEP int by_reference(const std::string &text, int after) { asm volatile(""); return text.size() + after; }
KEEP int by_pointer(std::string *text, int after) { asm volatile(""); return text->size() + after; }
KEEP int by_value(std::string text, int after) { asm volatile(""); return text.size() + after; }
KEEP std::string returns(int x, const char *text) { return std::string(text) + std::to_string(x); }
KEEP int view(std::string_view text, int after) { asm volatile(""); return text.size() + after + !text.data(); }
KEEP std::string_view returns_view(const char *text) { return std::string_view(text).substr(1); }
KEEP long trivial(Trivial t, int x) { asm volatile(""); return t.a + x + (t.b > 9); }
KEEP long with_destructor(WithDestructor w, int x) { asm volatile(""); return w.value + x; }
KEEP long defaulted(Defaulted w, int x) { asm volatile(""); return w.value + x; }
KEEP long inherits(Inherits i, int x) { asm volatile(""); return i.a + x; }
KEEP long empty(Empty, int x, Empty, int y) { asm volatile(""); return x + y; }
KEEP long virtual_(Virtual v, int x) { asm volatile(""); return v.value + x; }
KEEP long move_only(MoveOnly m, int x) { asm volatile(""); return *m.p + x; }
KEEP int enums(Colour c, bool b, char16_t u, void *p, int &r, int &&m) { asm volatile(""); return (int)c + b + u + !!p + r + m; }
KEEP Virtual returns_virtual(int x) { Virtual v; v.value = x; return v; }
KEEP int wide(const wchar_t *text, const unsigned char *bytes, signed char *s) { asm volatile(""); return *text + *bytes + *s; }
KEEP int pointers(int (*function)(int), int S::*member, int (S::*method)(int, const char *) const, int x) {
    asm volatile(""); return function(x) + !member + !method;
}
KEEP int variadic(const char *format, int x, ...) { asm volatile(""); return x + !*format; }
static KEEP int called(int x) { return x; }

template<class F, class... A> auto by_capture(F *function, A &&...a) {
    capture_target = (void *)function;
    return ((F *)(void *)capture)(std::forward<A>(a)...);
}
static const std::string small("small"), large(200, 'x'), nul(std::string("a\0b", 3));
extern "C" {
#define CALL(name, ...) __attribute__((visibility("default"))) void call_##name(void) { __VA_ARGS__; }
CALL(by_reference, by_capture(by_reference, small, 7))
CALL(by_reference_large, by_capture(by_reference, large, 7))
CALL(by_reference_nul, by_capture(by_reference, nul, 7))
CALL(by_reference_empty, std::string none; by_capture(by_reference, none, 7))
CALL(by_pointer, std::string text("pointed"); by_capture(by_pointer, &text, 8))
CALL(by_value, by_capture(by_value, std::string("value"), 9))
CALL(returns, by_capture(returns, 5, "result"))
CALL(returns_large, by_capture(returns, 5, large.c_str()))
CALL(view, by_capture(view, std::string_view("viewed").substr(1, 3), 3))
CALL(returns_view, by_capture(returns_view, "abc"))
CALL(trivial, by_capture(trivial, Trivial{3, 1.5}, 4))
CALL(with_destructor, by_capture(with_destructor, WithDestructor{77}, 4))
CALL(defaulted, by_capture(defaulted, Defaulted{78}, 4))
CALL(inherits, Inherits i; i.a = 3; i.b = 2.5; i.c = 0.5f; by_capture(inherits, std::move(i), 4))
CALL(empty, by_capture(empty, Empty{}, 5, Empty{}, 6))
CALL(virtual_, Virtual v; v.value = 99; by_capture(virtual_, v, 4))
CALL(move_only, MoveOnly m{std::make_unique<int>(5)}; by_capture(move_only, std::move(m), 4))
CALL(enums, int r = 3; by_capture(enums, Colour::Blue, true, u'\u1234', nullptr, r, 4))
CALL(returns_virtual, by_capture(returns_virtual, 321))
CALL(wide, signed char s = -1; by_capture(wide, L"wide", (const unsigned char *)"bytes", &s))
CALL(pointers, by_capture(pointers, called, (int S::*)nullptr, &S::method, 6))
CALL(variadic, by_capture(variadic, "%d", 5, 1.0))
CALL(method, S s{40}; auto m = &S::method; memcpy(&capture_target, &m, sizeof capture_target);
     ((int (*)(const S *, int, const char *))(void *)capture)(&s, 2, "text"))
CALL(fixed, by_capture(S::fixed, 11))
}
"#;

/// What is expected of the arguments of a call and of its result.
struct Expected {
    /// The function's name before its parameters, mangled.
    function: &'static str,
    caller: &'static str,
    arguments: Vec<Wanted>,
    result: Option<Wanted>,
}

/// What is expected of one value.
#[derive(Debug)]
enum Wanted {
    This(Decoded),
    /// An object of so many bytes, with these fields at their offsets; what is between them is padding.
    Object(usize, Vec<(usize, Vec<u8>)>),
}

impl Wanted {
    fn is(&self, found: &Decoded) -> bool {
        match (self, found) {
            (Wanted::This(expected), found) => expected == found,
            (Wanted::Object(size, fields), Decoded::Raw(bytes)) => {
                let has = |(at, field): &(usize, Vec<u8>)| bytes[*at..].starts_with(field);
                bytes.len() == *size && fields.iter().all(has)
            }
            _ => false,
        }
    }
}

fn text(text: &str) -> Wanted {
    Wanted::This(Decoded::Text(text.as_bytes().to_vec(), false))
}

fn number(number: i64) -> Wanted {
    Wanted::This(scalar(number))
}

fn scalar(number: i64) -> Decoded {
    Decoded::Scalar(number as u64)
}

fn expected() -> Vec<Expected> {
    let of =
        |function, caller, arguments: Vec<Wanted>, result| Expected { function, caller, arguments, result };
    let word = |value: u64| value.to_le_bytes().to_vec();
    let double = |value: f64| value.to_le_bytes().to_vec();
    let three = || 3_u32.to_le_bytes().to_vec();
    let cut = || Wanted::This(Decoded::Text(vec![b'x'; 96], true));
    vec![
        of("_Z12by_reference", "call_by_reference", vec![text("small"), number(7)], Some(number(12))),
        of("_Z12by_reference", "call_by_reference_large", vec![cut(), number(7)], Some(number(207))),
        of("_Z12by_reference", "call_by_reference_nul", vec![text("a\0b"), number(7)], Some(number(10))),
        of("_Z12by_reference", "call_by_reference_empty", vec![text(""), number(7)], Some(number(7))),
        of("_Z10by_pointer", "call_by_pointer", vec![text("pointed"), number(8)], Some(number(15))),
        of("_Z8by_value", "call_by_value", vec![text("value"), number(9)], Some(number(14))),
        of("_Z7returns", "call_returns", vec![number(5), text("result")], Some(text("result5"))),
        of("_Z7returns", "call_returns_large", vec![number(5), cut()], Some(cut())),
        of("_Z4view", "call_view", vec![text("iew"), number(3)], Some(number(6))),
        of("_Z12returns_view", "call_returns_view", vec![text("abc")], Some(text("bc"))),
        of(
            "_Z7trivial",
            "call_trivial",
            vec![Wanted::Object(16, vec![(0, three()), (8, double(1.5))]), number(4)],
            Some(number(7)),
        ),
        of(
            "_Z15with_destructor",
            "call_with_destructor",
            vec![Wanted::Object(8, vec![(0, word(77))]), number(4)],
            Some(number(81)),
        ),
        of(
            "_Z9defaulted",
            "call_defaulted",
            vec![Wanted::Object(8, vec![(0, word(78))]), number(4)],
            Some(number(82)),
        ),
        of(
            "_Z8inherits",
            "call_inherits",
            vec![
                Wanted::Object(
                    24,
                    vec![(0, three()), (8, double(2.5)), (16, 0.5_f32.to_le_bytes().to_vec())],
                ),
                number(4),
            ],
            Some(number(7)),
        ),
        of("_Z5empty", "call_empty", vec![number(5), number(6)], Some(number(11))),
        of("_Z8variadic", "call_variadic", vec![text("%d"), number(5)], Some(number(5))),
        of("_ZN1S5fixed", "call_fixed", vec![number(11)], Some(number(11))),
    ]
}

/// Returns the name of the symbol that begins like this. The name has its own length before it, so no other one does.
fn symbol(library: &Library, start: &str) -> String {
    let mut names = library.names().into_iter().filter(|name| name.starts_with(start) && !name.contains('.'));
    names.next().unwrap_or_else(|| panic!("{start}"))
}

/// Calls `check` with each library that a compiler makes of a source.
fn each_library(
    test: &str,
    name: &str,
    source: &str,
    compilers: &[&str],
    check: impl Fn(&str, &Library, &mut Signatures<'_>),
) {
    let standard: &[&str] = if name.ends_with(".cc") { &["-std=c++17"] } else { &[] };
    for compiler in compilers {
        for options in [["-O0", "-gdwarf-5"], ["-O2", "-gdwarf-5"], ["-O1", "-gdwarf-4"]] {
            let all: Vec<&str> = options.iter().chain(standard).copied().collect();
            let Some(library) = Library::compile(test, compiler, &all, name, source) else { break };
            let info = library.debug_info();
            let mut signatures = library.signatures(&info);
            check(&format!("{compiler} {options:?}"), &library, &mut signatures);
        }
    }
}

#[test]
fn functions_of_cpp() {
    each_library(
        "functions_of_cpp",
        "written.cc",
        CPP,
        &["g++", "clang++"],
        |context, library, signatures| {
            for Expected { function, caller, arguments, result } in expected() {
                let context = format!("{context} {caller}");
                let name = symbol(library, function);
                let signature = library.signature(signatures, &name);
                let signature = signature.unwrap_or_else(|why| panic!("{context}: {why}"));
                let call = library.call(&signature, caller);
                let (at_entry, at_exit) = (decoded(&call.at_entry), decoded(&call.at_exit));
                let is_same = at_entry.len() == arguments.len()
                    && arguments.iter().zip(&at_entry).all(|(expected, found)| expected.is(found));
                assert!(is_same, "{context}: {at_entry:?}, expected {arguments:?}");
                let is_same = match (&result, at_exit.as_slice()) {
                    (None, []) => true,
                    (Some(expected), [found]) => expected.is(found),
                    _ => false,
                };
                assert!(is_same, "{context}: {at_exit:?}, expected {result:?}");
            }
        },
    );
}

/// Values of which only a part is known before the call, such as addresses.
#[test]
fn other_functions_of_cpp() {
    each_library(
        "other_functions_of_cpp",
        "written.cc",
        CPP,
        &["g++", "clang++"],
        |context, library, signatures| {
            let mut called = |function: &str, caller: &str| {
                let signature = library.signature(signatures, &symbol(library, function));
                let signature = signature.unwrap_or_else(|why| panic!("{context} {function}: {why}"));
                let call = library.call(&signature, caller);
                (signature, decoded(&call.at_entry), decoded(&call.at_exit))
            };
            // The object is a copy whose address is passed: the table of virtual functions, then the value.
            let of_virtual =
                |value: &Decoded| matches!(value, Decoded::Raw(bytes) if bytes.len() == 16 && bytes[8] == 99);
            let (_, entry, _) = called("_Z8virtual_", "call_virtual_");
            assert!(of_virtual(&entry[0]) && entry[1] == scalar(4), "{context}: {entry:?}");
            let (signature, entry, exit) = called("_Z15returns_virtual", "call_returns_virtual");
            assert_eq!(entry, [scalar(321)], "{context}");
            assert!(matches!(signature.result.expect("a result").place, Place::Behind(_)));
            assert!(
                matches!(&exit[0], Decoded::Raw(bytes) if bytes[8..10] == [65, 1]),
                "{context}: {exit:?}"
            );
            let (_, entry, exit) = called("_Z9move_only", "call_move_only");
            assert!(matches!(&entry[0], Decoded::Raw(bytes) if bytes.len() == 8), "{context}: {entry:?}");
            assert_eq!((&entry[1], &exit[0]), (&scalar(4), &scalar(9)), "{context}");
            let (signature, entry, exit) = called("_Z5enums", "call_enums");
            assert_eq!(entry[..4], [scalar(200), scalar(1), scalar(0x1234), scalar(0)], "{context}");
            let Shape::Enum(colour) = &signature.parameters[0].value.ty.shape else { panic!("{context}") };
            let names: Vec<_> = colour.variants.iter().map(|(name, value)| (&**name, *value)).collect();
            assert_eq!(names, [("Red", 1), ("Blue", 200)], "{context}");
            assert_eq!(exit, [scalar(200 + 1 + 0x1234 + 3 + 4)], "{context}");
            let (_, entry, _) = called("_Z8pointers", "call_pointers");
            let function = library.symbol_or_local(&symbol(library, "_ZL6called"));
            assert_eq!(
                (entry[0].clone(), entry[1].clone()),
                (scalar(function as i64), scalar(-1)),
                "{context}"
            );
            assert_eq!(entry.last(), Some(&scalar(6)), "{context}");
            let (signature, entry, exit) = called("_ZNK1S6method", "call_method");
            assert_eq!(signature.parameters[0].name.as_deref(), Some("this"));
            assert!(matches!(entry[0], Decoded::Scalar(at) if at > 4096), "{context}: {entry:?}");
            assert_eq!(
                (&entry[1..], exit.as_slice()),
                (&[scalar(2), Decoded::Text(b"text".to_vec(), false)][..], &[scalar(42)][..]),
                "{context}"
            );
            // Only pointers to char are strings.
            let (_, entry, exit) = called("_Z4wide", "call_wide");
            assert!(entry.iter().all(|value| matches!(value, Decoded::Scalar(_))), "{context}: {entry:?}");
            assert_eq!(exit, [scalar(i64::from(b'w') + i64::from(b'b') - 1)], "{context}");
            let (signature, ..) = called("_Z8variadic", "call_variadic");
            assert_eq!(signature.rest, Some(Rest::Variadic));
        },
    );
}
