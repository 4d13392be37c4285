//! The names of functions as people write them, in C++ and Rust.
//!
//! A mangled name says by a few bytes that a part of it comes again, so that the demangled one may be longer by any factor. No
//! more than [`LONGEST`] bytes of it are made, and of a longer one the beginning is shown.

use std::borrow::Cow;
use std::fmt::{self, Write};

use cpp_demangle::{BorrowedSymbol, DemangleOptions};
use rustc_demangle::Demangle;

use crate::names::short;
use crate::names::unicode::Hidden;

/// The length in bytes above which a name is shortened. The longest names of programs that were looked at have some thousand.
pub const LONGEST: usize = 16 << 10;
/// The number of bytes at the beginning of a longer name that are shown.
const BEGINNING: usize = 1000;
/// What stands behind the name of a function in that of its stub in the PLT.
const STUB: &str = "@plt";

/// Returns the demangled name with parameters, or the name itself if it is not mangled. Names that are too long are
/// shortened so that different ones stay different.
pub fn demangle(name: &str) -> Cow<'_, str> {
    if name.len() > LONGEST {
        return Cow::Owned(shortened(name, name));
    }
    let (symbol, stub) = name.strip_suffix(STUB).map_or((name, ""), |function| (function, STUB));
    let text = match Hidden::of(symbol) {
        Some(hidden) => demangled(&hidden.text, name).map(|text| hidden.restore(&text).into_owned()),
        None => demangled(symbol, name),
    };
    text.map_or(Cow::Borrowed(name), |text| Cow::Owned(text + stub))
}

/// Returns the demangled name of a symbol, or `None` if it is not mangled. `name` is what tells a name apart that is too long.
fn demangled(symbol: &str, name: &str) -> Option<String> {
    match split(symbol) {
        Mangled::No => None,
        Mangled::Rust(symbol) => Some(of_rust(&symbol, name)),
        Mangled::Cpp(symbol) => of_cpp(&symbol, name, DemangleOptions::new()),
    }
}

/// Visits all spellings that a pattern may mean: the name in the symbol table, the name without the suffix of
/// a compiler's clone (`f.constprop.0`), the demangled name with and without parameters, the short name, and
/// this without each of the components at its beginning, so that a function is found by its last one, as in gdb. Returns true as soon
/// as `visit` does.
pub fn any_spelling(name: &str, mut visit: impl FnMut(&str) -> bool) -> bool {
    match Hidden::of(name) {
        Some(hidden) => any_spelling_of(&hidden.text, &mut |text| visit(&hidden.restore(text))),
        None => any_spelling_of(name, &mut visit),
    }
}

/// The same for a name whose mangling the demangler knows.
fn any_spelling_of(name: &str, mut visit: &mut dyn FnMut(&str) -> bool) -> bool {
    if visit(name) {
        return true;
    }
    let plain = name.find('.').filter(|&dot| dot > 0).map_or(name, |dot| &name[..dot]);
    if plain.len() != name.len() && visit(plain) {
        return true;
    }
    let demangled = match split(name) {
        // The name may be a demangled one.
        Mangled::No if name.contains("::") => Cow::Borrowed(name),
        Mangled::No => return false,
        Mangled::Rust(symbol) => Cow::Owned(of_rust(&symbol, name)),
        Mangled::Cpp(symbol) => {
            let Some(text) = of_cpp(&symbol, name, DemangleOptions::new()) else { return false };
            let bare = DemangleOptions::new().no_params().no_return_type();
            if of_cpp(&symbol, name, bare).is_some_and(|text| visit(&text)) {
                return true;
            }
            Cow::Owned(text)
        }
    };
    if visit(&demangled) {
        return true;
    }
    // As a table has it where the short form is not enough to tell functions apart.
    if visit(&short::short_with_parameters(&demangled)) {
        return true;
    }
    let short = short::short(&demangled);
    let ends = std::iter::successors(Some(short.as_ref()), |text| text.split_once("::").map(|(_, end)| end));
    // The arguments of a template at the end are no part of what a user would type.
    let mut bare =
        ends.flat_map(|end| [Some(end), end.strip_suffix("<...>").map(|end| end.trim_end_matches("::"))]);
    bare.any(|end| end.is_some_and(&mut visit))
}

enum Mangled<'n> {
    No,
    Rust(Demangle<'n>),
    Cpp(BorrowedSymbol<'n>),
}

fn split(name: &str) -> Mangled<'_> {
    if name.len() > LONGEST {
        return Mangled::No;
    }
    // Rust's older mangling scheme is C++'s with a hash as the last component; the v0 scheme begins with _R.
    let rust = name.starts_with("_R") || (name.starts_with("_ZN") && name.contains("17h"));
    if rust && let Ok(symbol) = rustc_demangle::try_demangle(name) {
        return Mangled::Rust(symbol);
    }
    if name.starts_with("_Z")
        && let Ok(symbol) = BorrowedSymbol::new(name.as_bytes())
    {
        return Mangled::Cpp(symbol);
    }
    Mangled::No
}

/// Text of at most [`LONGEST`] bytes. A demangler that writes more gets an error, and so does no more work.
#[derive(Default)]
struct Bounded {
    text: String,
    is_full: bool,
}

impl Write for Bounded {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        if part.len() > LONGEST - self.text.len() {
            self.is_full = true;
            return Err(fmt::Error);
        }
        self.text.push_str(part);
        Ok(())
    }
}

fn of_rust(symbol: &Demangle, name: &str) -> String {
    let mut out = Bounded::default();
    match write!(out, "{symbol:#}") {
        Ok(()) => out.text,
        Err(_) => shortened(&out.text, name),
    }
}

/// Returns `None` if the name is mangled wrongly.
fn of_cpp(symbol: &BorrowedSymbol, name: &str, options: DemangleOptions) -> Option<String> {
    let mut out = Bounded::default();
    match symbol.structured_demangle(&mut out, &options) {
        Ok(()) => Some(out.text),
        Err(_) if out.is_full => Some(shortened(&out.text, name)),
        Err(_) => None,
    }
}

/// Returns the beginning of a name that is too long, and what tells it apart: the mangled name, or if that is long too, its
/// length and its hash (FNV-1a).
fn shortened(text: &str, mangled: &str) -> String {
    let end = (0..=BEGINNING.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    let beginning = &text[..end];
    if mangled.len() <= BEGINNING {
        return format!("{beginning}...[{mangled}]");
    }
    let hash = mangled.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{beginning}...[{} bytes, {hash:016x}]", mangled.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_three_schemes() {
        assert_eq!(demangle("main"), "main");
        assert_eq!(demangle("_ZN3foo3barEi"), "foo::bar(int)");
        assert_eq!(demangle("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
        assert_eq!(demangle("_RNvC6_123foo3bar"), "123foo::bar");
        assert_eq!(demangle("_ZN3foo3barEi@plt"), "foo::bar(int)@plt");
        assert_eq!(demangle("_Rnot"), "_Rnot");
        // As c++filt has them, of names that gcc and clang have written.
        assert_eq!(demangle("_ZN8größen7ZählerIiE11zählen_数El"), "größen::Zähler<int>::zählen_数(long)");
        assert_eq!(demangle("_Z7größeN8größen5ÄrgeE@plt"), "größe(größen::Ärge)@plt");
        assert_eq!(demangle("_ZN4größ"), "_ZN4größ");
        assert_eq!(demangle("_Znot"), "_Znot");
        assert_eq!(demangle(""), "");
    }

    #[test]
    fn spellings() {
        let all = |name: &str| {
            let mut spellings = Vec::new();
            any_spelling(name, |text| {
                spellings.push(text.to_owned());
                false
            });
            spellings
        };
        assert_eq!(all("f.constprop.0"), ["f.constprop.0", "f"]);
        assert_eq!(
            all("_ZN3foo3barEi"),
            ["_ZN3foo3barEi", "foo::bar", "foo::bar(int)", "foo::bar(int)", "foo::bar", "bar"]
        );
        assert_eq!(
            all("_ZN1a1BIiE1cIcEEvv").last_chunk(),
            Some(
                &["a::B<...>::c<...>", "a::B<...>::c", "B<...>::c<...>", "B<...>::c", "c<...>", "c"]
                    .map(str::to_owned)
            )
        );
        assert_eq!(
            all("_ZN8größen4zähEi"),
            ["_ZN8größen4zähEi", "größen::zäh", "größen::zäh(int)", "größen::zäh(int)", "größen::zäh", "zäh"]
        );
        assert_eq!(all("main"), ["main"]);
        assert_eq!(all(".text"), [".text"]);
    }

    #[test]
    fn names_that_would_be_endless() {
        // Each part is twice the one before. Every other substitution is the template without its arguments.
        let mut name = "_Z1fSt4pairIiiE".to_owned();
        for part in
            ["S0_", "S2_", "S4_", "S6_", "S8_", "SA_", "SC_", "SE_", "SG_", "SI_", "SK_", "SM_", "SO_"]
        {
            name += &format!("St4pairI{part}{part}E");
        }
        for name in [name.clone(), format!("{name}i")] {
            let shown = demangle(&name);
            assert!(shown.len() < 3 * BEGINNING && shown.ends_with(&format!("...[{name}]")), "{shown}");
        }
        let long = |end| "x".repeat(100_000) + end;
        assert!(demangle(&long("a")).len() < 2 * BEGINNING);
        assert_ne!(demangle(&long("a")), demangle(&long("b")));
        assert!(any_spelling(&name, |text| text.starts_with("f(std::pair<int, int>")));
    }
}
