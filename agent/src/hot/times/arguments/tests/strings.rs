//! Strings that are at their limits, and those of libc++.

use super::library::{Decoded, Library, decoded};
use super::*;
use gprofinject_image::signatures::Word;
use gprofinject_plan::fetches;

/// The layout of libc++'s string on little-endian machines, as `std::basic_string` in its header `string` has it: bit 0 of the first
/// byte says whether the string is long.
const LIBCXX: &str = r#"
#include "capture.c"
namespace std { inline namespace __1 {
template<class C> struct char_traits {};
template<class C> struct allocator {};
template<class C, class T = char_traits<C>, class A = allocator<C>> class basic_string {
    struct __long { unsigned long __is_long_ : 1, __cap_ : 63; unsigned long __size_; C *__data_; };
    struct __short { unsigned char __is_long_ : 1, __size_ : 7; C __data_[23]; };
    union __rep { __long __l; __short __s; } __rep_;
public:
    basic_string(const C *text, unsigned long size) {
        if (size < 23) {
            __rep_.__s.__is_long_ = 0; __rep_.__s.__size_ = size; memcpy(__rep_.__s.__data_, text, size);
            __rep_.__s.__data_[size] = 0;
        } else {
            __rep_.__l.__is_long_ = 1; __rep_.__l.__cap_ = (size + 16) / 2; __rep_.__l.__size_ = size;
            static C copy[128];
            memcpy(copy, text, size); copy[size] = 0; __rep_.__l.__data_ = copy;
        }
    }
    ~basic_string() {}
};
}}
using string = std::basic_string<char>;
__attribute__((noinline)) int by_reference(const string &text, int after) { asm volatile("" : : "r"(&text)); return after; }
__attribute__((noinline)) int by_value(string text, int after) { asm volatile("" : : "r"(&text)); return after; }
static const char large[] = "0123456789012345678901234567890123456789012345678901234567890123456789"
    "0123456789012345678901234567890123456789";
extern "C" {
#define CALL(name, function, size) void call_##name(void) { \
    capture_target = (void *)function; ((decltype(&function))(void *)capture)(string(large, size), size); }
CALL(none, by_reference, 0)
CALL(short, by_reference, 22)
CALL(long, by_reference, 23)
CALL(limit, by_value, 96)
CALL(above, by_value, 97)
}
"#;

fn digits(len: usize) -> Vec<u8> {
    (0..len).map(|i| b'0' + (i % 10) as u8).collect()
}

#[test]
fn strings_of_libcxx() {
    for compiler in ["g++", "clang++"] {
        let options = &["-O1", "-std=c++17"];
        let library = Library::compile("strings_of_libcxx", compiler, options, "libcxx.cc", LIBCXX);
        let Some(library) = library else { continue };
        let info = library.debug_info();
        let mut signatures = library.signatures(&info);
        let calls = [("none", 0), ("short", 22), ("long", 23), ("limit", 96), ("above", 97)];
        for (name, len) in calls {
            let function = if len < 96 { "_Z12by_reference" } else { "_Z8by_value" };
            let symbol = library.names().into_iter().find(|symbol| symbol.starts_with(function));
            let signature = library.signature(&mut signatures, &symbol.expect("a function"));
            let call = library.call(&signature.expect("a signature"), &format!("call_{name}"));
            let text = Decoded::Text(digits(len.min(96)), len > 96);
            assert_eq!(decoded(&call.at_entry), [text, Decoded::Scalar(len as u64)], "{compiler} {name}");
        }
    }
}

/// The same functions with the library itself, where it is installed.
#[test]
fn strings_of_libcxx_itself() {
    let test = "strings_of_libcxx_itself";
    let start = LIBCXX.find("namespace std").expect("it");
    let end = LIBCXX.find("using string").expect("it");
    let source = format!("{}#include <string>\n{}", &LIBCXX[..start], &LIBCXX[end..]);
    // GPROFINJECT_LIBCXX names a compiler that has it.
    let compiler = std::env::var("GPROFINJECT_LIBCXX").unwrap_or_else(|_| "clang++".to_owned());
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("empty.cc"), "#include <string>\n").expect("a file");
    let mut command = std::process::Command::new(&compiler);
    command.args(["-stdlib=libc++", "-c", "-o", "empty.o", "empty.cc"]).current_dir(folder.path());
    let has_it = command.output().is_ok_and(|output| output.status.success());
    if !has_it {
        gprofinject_skip::skipped(test, "no libc++");
        return;
    }
    for level in ["-O0", "-O1"] {
        let options = &[level, "-std=c++17", "-stdlib=libc++"];
        let Some(library) = Library::compile(test, &compiler, options, "libcxx.cc", &source) else { return };
        let info = library.debug_info();
        let mut signatures = library.signatures(&info);
        for (name, len) in [("none", 0), ("short", 22), ("long", 23), ("limit", 96), ("above", 97)] {
            let function = if len < 96 { "_Z12by_reference" } else { "_Z8by_value" };
            let symbol = library.names().into_iter().find(|symbol| symbol.starts_with(function));
            let signature = library.signature(&mut signatures, &symbol.expect("a function"));
            let call = library.call(&signature.expect("a signature"), &format!("call_{name}"));
            let text = Decoded::Text(digits(len.min(96)), len > 96);
            assert_eq!(decoded(&call.at_entry), [text, Decoded::Scalar(len as u64)], "{level} {name}");
        }
    }
}

/// Executes fetches with these integer registers.
fn fetched(all: &[Fetch], integers: &[u64]) -> Vec<Decoded> {
    let mut registers = Registers::default();
    registers.integers[..integers.len()].copy_from_slice(integers);
    let mut out = [0; CALL_MAX];
    let len = fetch(all, &registers, &mut out);
    decoded(&out[..len])
}

fn at(op: Op, number: u8) -> Fetch {
    fetches::at_address(op, Word::Integer(number))
}

/// A page that can be read, before one that cannot.
struct Pages(u64);

impl Pages {
    const SIZE: u64 = 4096;

    fn new() -> Pages {
        // SAFETY: the kernel chooses the address; half of it is taken away.
        unsafe {
            let start = memory::mmap(
                0,
                2 * Pages::SIZE,
                memory::PROT_READ | memory::PROT_WRITE,
                memory::MAP_PRIVATE | memory::MAP_ANONYMOUS,
                -1,
                0,
            );
            let start = start.expect("memory");
            memory::mprotect(start + Pages::SIZE, Pages::SIZE, 0).expect("it is ours");
            Pages(start)
        }
    }

    /// Writes bytes at the end of the page, and returns their address.
    fn put(&self, bytes: &[u8]) -> u64 {
        let start = self.0 + Pages::SIZE - bytes.len() as u64;
        // SAFETY: the bytes fit into the page, which is ours.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), start as *mut u8, bytes.len()) };
        start
    }
}

#[test]
fn strings_at_the_end_of_memory() {
    let pages = Pages::new();
    let string = |bytes: &[u8]| fetched(&[at(Op::CString, 0)], &[pages.put(bytes)]);
    let text = |bytes: &[u8], is_cut| vec![Decoded::Text(bytes.to_vec(), is_cut)];
    assert_eq!(string(b"whole\0"), text(b"whole", false));
    assert_eq!(string(b"\0"), text(b"", false));
    // It does not end before the page does.
    assert_eq!(string(b"open"), text(b"open", true));
    let long = digits(97);
    assert_eq!(string(&long), text(&long[..96], true));
    let limit = [&long[..96], b"\0"].concat();
    assert_eq!(string(&limit), text(&long[..96], false));
    // A string of known length of which less can be read.
    let pair = Fetch { sources: [0, 1], ..at(Op::Str, 0) };
    let known = |bytes: &[u8], len| fetched(&[pair], &[pages.put(bytes), len]);
    assert_eq!(known(b"abc", 3), text(b"abc", false));
    assert_eq!(known(b"abc", 2), text(b"ab", false));
    assert_eq!(known(b"abc", 4), text(b"abc", true));
    assert_eq!(known(b"abc", u64::MAX), text(b"abc", true));
    assert_eq!(known(b"abc", 0), text(b"", false));
    // Objects are read as a whole.
    let object = Fetch { size: 8, ..at(Op::Bytes, 0) };
    let at_end = pages.put(b"12345678");
    assert_eq!(fetched(&[object], &[at_end]), [Decoded::Raw(b"12345678".to_vec())]);
    assert_eq!(fetched(&[object], &[at_end + 1]), [Decoded::Unreadable(at_end + 1)]);
    let number = Fetch { size: 4, is_signed: 1, ..at(Op::Load, 0) };
    let at_end = pages.put(&(-2_i32).to_le_bytes());
    assert_eq!(fetched(&[number], &[at_end]), [Decoded::Scalar(-2_i64 as u64)]);
    assert_eq!(fetched(&[number], &[at_end + 1]), [Decoded::Unreadable(at_end + 1)]);
}

/// The address and the length are words of an object, in any order, and nothing behind them is read.
#[test]
fn strings_whose_words_are_in_an_object() {
    let pages = Pages::new();
    let characters = c"0123456789".as_ptr() as u64;
    let object =
        |words: &[u64]| pages.put(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
    let shown = |address: u32, length: u32, object: u64| {
        let fetch = Fetch { size: address | length << 8, ..at(Op::Text, 0) };
        fetched(&[fetch], &[object]).pop()
    };
    let text = |len| Some(Decoded::Text(digits(len), false));
    assert_eq!(shown(0, 1, object(&[characters, 10])), text(10));
    assert_eq!(shown(1, 2, object(&[99, characters, 4])), text(4));
    assert_eq!(shown(2, 0, object(&[3, 99, characters])), text(3));
    // An empty one has no memory: Rust's is at the address 1.
    assert_eq!(shown(0, 1, object(&[1, 0])), text(0));
    let without_memory = object(&[1, 5]);
    assert_eq!(shown(0, 1, without_memory), Some(Decoded::Unreadable(without_memory)));
    let cut = object(&[characters]);
    assert_eq!(shown(0, 1, cut), Some(Decoded::Unreadable(cut)));
}

#[test]
fn bad_pointers() {
    let pages = Pages::new();
    let unreadable = pages.0 + Pages::SIZE;
    let strings = [Op::CString, Op::Str, Op::Text, Op::StdString, Op::LibcxxString, Op::OldString];
    let all = [&strings[..], &[Op::Bytes, Op::Load]].concat();
    let not_canonical = 0x8000_0000_0000_0000;
    for bad in
        [0, 1, unreadable, unreadable - 1, not_canonical, u64::MAX, u64::MAX - 4095, 0xffff_8000_0000_0000]
    {
        for &op in &all {
            if bad == unreadable - 1 && matches!(op, Op::CString | Op::Str) {
                continue;
            }
            let fetch = Fetch { size: 8, sources: [0, 1], ..at(op, 0) };
            assert_eq!(fetched(&[fetch], &[bad, 5]), [Decoded::Unreadable(bad)], "{op:?} {bad:#x}");
        }
    }
    // Strings whose object can be read, but not its characters.
    let object = pages.put(&[unreadable.to_le_bytes(), 7_u64.to_le_bytes()].concat());
    assert_eq!(fetched(&[at(Op::StdString, 0)], &[object]), [Decoded::Unreadable(object)]);
    assert_eq!(fetched(&[at(Op::OldString, 0)], &[object]), [Decoded::Unreadable(object)]);
    let long = pages.put(&[33_u64.to_le_bytes(), 7_u64.to_le_bytes(), unreadable.to_le_bytes()].concat());
    assert_eq!(fetched(&[at(Op::LibcxxString, 0)], &[long]), [Decoded::Unreadable(long)]);
}

/// Where there is no string yet, or no longer, memory may look like a part of one.
#[test]
fn what_is_no_string_is_shown_by_its_address() {
    let pages = Pages::new();
    let characters = c"0123456789".as_ptr() as u64;
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let shown = |op, bytes: &[u8]| {
        let object = pages.put(bytes);
        fetched(&[at(op, 0)], &[object]).pop().filter(|found| *found != Decoded::Unreadable(object))
    };
    let digits = |len| Some(Decoded::Text(digits(len), false));
    assert_eq!(shown(Op::StdString, &words(&[characters, 10, 10, 0])), digits(10));
    // It has more characters than room, no characters, none behind which there is a zero, or a length that no string has.
    assert_eq!(shown(Op::StdString, &words(&[characters, 10, 9, 0])), None);
    assert_eq!(shown(Op::StdString, &words(&[0, 0, 9, 0])), None);
    assert_eq!(shown(Op::StdString, &words(&[characters, 9, 10, 0])), None);
    assert_eq!(shown(Op::StdString, &words(&[characters, u64::MAX - 1, u64::MAX, 0])), None);
    // A short one is in its object, at the end of which is the page's.
    let object = pages.0 + Pages::SIZE - 32;
    let short = |len: u64| [words(&[object + 16, len]), b"0123456789abcde\0".to_vec()].concat();
    assert_eq!(shown(Op::StdString, &short(15)), Some(Decoded::Text(b"0123456789abcde".to_vec(), false)));
    for len in [14, 16, 96, 97] {
        assert_eq!(shown(Op::StdString, &short(len)), None, "{len}");
    }
    let long = |room: u64, len| words(&[room | 1, len, characters]);
    assert_eq!(shown(Op::LibcxxString, &long(16, 10)), digits(10));
    assert_eq!(shown(Op::LibcxxString, &long(10, 10)), None);
    assert_eq!(shown(Op::LibcxxString, &long(16, 9)), None);
    // It cannot have more characters than its object.
    assert_eq!(shown(Op::LibcxxString, &[&[23 << 1], &[0; 23][..]].concat()), None);
    assert_eq!(
        shown(Op::LibcxxString, &[&[22 << 1], &[b'x'; 22][..], &[0]].concat()),
        Some(Decoded::Text(vec![b'x'; 22], false))
    );
    assert_eq!(shown(Op::LibcxxString, &[&[21 << 1], &[b'x'; 22][..], &[0]].concat()), None);
}

#[test]
fn values_beyond_the_limit_are_left_out() {
    let text = digits(200);
    let string = [&text[..], b"\0"].concat();
    let address = string.as_ptr() as u64;
    // 99 bytes each: two and a part of the third one.
    let all = vec![at(Op::CString, 0); 5];
    let found = fetched(&all, &[address]);
    let cut = |len: usize| Decoded::Text(text[..len].to_vec(), true);
    assert_eq!(found, [cut(96), cut(96), cut(256 - 2 * 99 - 3)]);
    let numbers = vec![fetches::scalar(Word::Integer(0), 8, false); 100];
    assert_eq!(fetched(&numbers, &[7]), vec![Decoded::Scalar(7); 256 / 9]);
    // What fits after a value that does not is left out as well: values have no names.
    let object = Fetch { size: 64, ..at(Op::Bytes, 0) };
    let mixed = [object, object, object, object, numbers[0]];
    assert_eq!(fetched(&mixed, &[address]).len(), 3);
    assert_eq!(fetched(&[], &[]), []);
}

#[test]
fn numbers_are_as_wide_as_their_types() {
    let word = 0xfedc_ba98_7654_32f0_u64;
    for (size, is_signed, expected) in [
        (1, false, 0xf0),
        (1, true, 0xffff_ffff_ffff_fff0),
        (2, false, 0x32f0),
        (2, true, 0x32f0),
        (4, false, 0x7654_32f0),
        (8, true, word),
        (8, false, word),
        // What no table has.
        (0, false, 0xf0),
        (99, false, word),
    ] {
        let fetch = fetches::scalar(Word::Integer(3), size, is_signed);
        assert_eq!(fetched(&[fetch], &[0, 0, 0, word]), [Decoded::Scalar(expected)], "{size} {is_signed}");
    }
    // Fetches that are none end the list.
    let good = fetches::scalar(Word::Integer(0), 8, false);
    let no_op = Fetch::default();
    let no_source = Fetch { sources: [9, 0], ..good };
    for bad in [no_op, no_source, Fetch { sources: [255, 0], ..good }] {
        assert_eq!(fetched(&[good, bad, good], &[1]), [Decoded::Scalar(1)]);
    }
}

/// The words on the stack are read directly where that is safe, and by the kernel elsewhere.
#[test]
fn words_on_the_stack() {
    let pages = Pages::new();
    let at_end = pages.put(&[1_u64.to_le_bytes(), 2_u64.to_le_bytes()].concat());
    let read = |cfa: u64, offset: u32| {
        let registers = Registers { cfa, ..Registers::default() };
        let mut out = [0; CALL_MAX];
        let len = fetch(&[fetches::scalar(Word::Stack(offset), 8, false)], &registers, &mut out);
        decoded(&out[..len])
    };
    assert_eq!(read(at_end, 0), [Decoded::Scalar(1)]);
    assert_eq!(read(at_end, 8), [Decoded::Scalar(2)]);
    // Beyond the end of the stack.
    assert_eq!(read(at_end, 16), [Decoded::Unreadable(at_end + 16)]);
    assert_eq!(read(at_end + 16, 0), [Decoded::Unreadable(at_end + 16)]);
    let object = |cfa: u64, size: u32| {
        let registers = Registers { cfa, ..Registers::default() };
        let mut out = [0; CALL_MAX];
        let len = fetch(&[fetches::on_stack(Word::Stack(0), size)], &registers, &mut out);
        decoded(&out[..len])
    };
    let bytes = [&1_u64.to_le_bytes()[..], &2_u64.to_le_bytes()].concat();
    assert_eq!(object(at_end, 16), [Decoded::Raw(bytes.clone())]);
    assert_eq!(object(at_end, 12), [Decoded::Raw(bytes[..12].to_vec())]);
    assert_eq!(object(at_end, 17), [Decoded::Unreadable(at_end)]);
    assert_eq!(object(0, 8), [Decoded::Unreadable(0)]);
    // Not aligned, so the kernel reads it.
    assert_eq!(
        read(at_end + 8, u32::MAX - 7),
        [Decoded::Unreadable((at_end + 8).wrapping_add(u32::MAX as u64 - 7))]
    );
}

/// Without system calls, pointers are not followed; numbers are read all the same.
#[test]
fn under_seccomp() {
    let text = b"text\0";
    let all = [at(Op::CString, 0), fetches::scalar(Word::Integer(1), 8, false), at(Op::StdString, 0)];
    // The switch is for the whole process, so this runs in a child: other tests need system calls.
    let address = text.as_ptr() as u64;
    let expected = [Decoded::Unreadable(address), Decoded::Scalar(9), Decoded::Unreadable(address)];
    // SAFETY: the child has only this thread, and ends at once; it allocates nothing before that.
    let child = unsafe { task::fork() }.expect("a child");
    if child == 0 {
        kernel::freeze(true);
        let mut registers = Registers::default();
        registers.integers[..2].copy_from_slice(&[address, 9]);
        let mut out = [0; CALL_MAX];
        let len = fetch(&all, &registers, &mut out);
        kernel::freeze(false);
        let mut wanted = [0; 27];
        let put = |wanted: &mut [u8; 27], at: usize, tag: u8, word: u64| {
            wanted[at] = tag;
            wanted[at + 1..at + 9].copy_from_slice(&word.to_le_bytes());
        };
        put(&mut wanted, 0, UNREADABLE, address);
        put(&mut wanted, 9, SCALAR, 9);
        put(&mut wanted, 18, UNREADABLE, address);
        task::exit(u64::from(out[..len] != wanted));
    }
    let mut status = -1_i32;
    // SAFETY: the kernel writes the status.
    let waited =
        unsafe { kernel::call(linux_raw_sys::general::__NR_wait4, [child, &raw mut status as u64, 0, 0]) };
    assert_eq!((waited, status), (Ok(child), 0), "expected {expected:?}");
}
