//! The names of functions as people write them, in C++ and Rust.

use std::borrow::Cow;

/// Returns the demangled name with parameters, or the name itself if it is not mangled.
pub fn demangle(name: &str) -> Cow<'_, str> {
    match split(name) {
        Mangled::No => Cow::Borrowed(name),
        Mangled::Rust(text) => Cow::Owned(text),
        Mangled::Cpp(symbol) => match symbol.demangle() {
            Ok(text) => Cow::Owned(text),
            Err(_) => Cow::Borrowed(name),
        },
    }
}

/// Visits all spellings that a pattern may mean: the name in the symbol table, the name without the suffix of
/// a compiler's clone (`f.constprop.0`), and the demangled name with and without parameters. Returns true as
/// soon as `visit` does.
pub fn any_spelling(name: &str, mut visit: impl FnMut(&str) -> bool) -> bool {
    if visit(name) {
        return true;
    }
    let plain = name.find('.').filter(|&dot| dot > 0).map_or(name, |dot| &name[..dot]);
    if plain.len() != name.len() && visit(plain) {
        return true;
    }
    match split(name) {
        Mangled::No => false,
        Mangled::Rust(text) => visit(&text),
        Mangled::Cpp(symbol) => {
            let short = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
            symbol.demangle().is_ok_and(|text| visit(&text))
                || symbol.demangle_with_options(&short).is_ok_and(|text| visit(&text))
        }
    }
}

enum Mangled<'n> {
    No,
    Rust(String),
    Cpp(cpp_demangle::BorrowedSymbol<'n>),
}

fn split(name: &str) -> Mangled<'_> {
    // Rust's older mangling scheme is C++'s with a hash as the last component; the v0 scheme begins with _R.
    let rust = name.starts_with("_R") || (name.starts_with("_ZN") && name.contains("17h"));
    if rust && let Ok(symbol) = rustc_demangle::try_demangle(name) {
        return Mangled::Rust(format!("{symbol:#}"));
    }
    if name.starts_with("_Z")
        && let Ok(symbol) = cpp_demangle::BorrowedSymbol::new(name.as_bytes())
    {
        return Mangled::Cpp(symbol);
    }
    Mangled::No
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
        assert_eq!(demangle("_Rnot"), "_Rnot");
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
        assert_eq!(all("_ZN3foo3barEi"), ["_ZN3foo3barEi", "foo::bar(int)", "foo::bar"]);
        assert_eq!(all("main"), ["main"]);
        assert_eq!(all(".text"), [".text"]);
    }
}
