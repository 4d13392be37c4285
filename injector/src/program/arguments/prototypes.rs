//! Prototypes of the C library's functions, for which there is rarely debug information.
//!
//! The table `prototypes.txt` is in the terms of [`spec`]. It counts only in the C library itself: a function `open` of a
//! program may be any function.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::program::arguments::spec::{self, Item, ValueSpec};

const TABLE: &str = include_str!("prototypes.txt");

/// The file names with which the C library's parts begin, in glibc and musl.
const LIBRARIES: [&str; 10] = [
    "libc.so",
    "libc-2.",
    "libm.so",
    "libm-2.",
    "libpthread",
    "libdl",
    "librt",
    "ld-musl-",
    "libc.musl-",
    "libmvec",
];

/// Returns whether the library with this file name is a part of the C library.
pub(crate) fn is_c_library(name: &str) -> bool {
    LIBRARIES.iter().any(|known| name.starts_with(known))
}

/// Returns the values of a function of the C library that has one of these names.
pub(crate) fn of<'n>(mut names: impl Iterator<Item = &'n str>) -> Option<&'static [ValueSpec]> {
    let table = table();
    names.find_map(|name| {
        let name = without_version(name);
        let plain = || table.get(of_implementation(name)?);
        table.get(name).or_else(plain).map(Vec::as_slice)
    })
}

fn table() -> &'static HashMap<&'static str, Vec<ValueSpec>> {
    static PARSED: OnceLock<HashMap<&'static str, Vec<ValueSpec>>> = OnceLock::new();
    PARSED.get_or_init(|| entries().collect())
}

/// Returns all names with their values.
fn entries() -> impl Iterator<Item = (&'static str, Vec<ValueSpec>)> {
    let lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.flat_map(|line| {
        let values = match spec::parse(line).as_deref() {
            Ok([Item::Functions { values, .. }]) => values.clone(),
            // A test parses all lines.
            _ => Vec::new(),
        };
        let names = line.split('@').next().unwrap_or_default();
        names.split('|').map(move |name| (name, values.clone()))
    })
}

/// Returns `memcpy` for `memcpy@@GLIBC_2.14`.
fn without_version(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}

/// Returns `memmove` for `__memmove_avx_unaligned_erms`, an implementation for some processors, and `open64` for `__open64` and
/// `__GI___open64`, names inside the library.
fn of_implementation(name: &str) -> Option<&str> {
    const PROCESSORS: [&str; 8] = ["_sse", "_ssse", "_avx", "_evex", "_erms", "_fma", "_x86_64", "_generic"];
    let inner = name.strip_prefix("__GI_").unwrap_or(name);
    let inner = inner.strip_prefix("__libc_").or_else(|| inner.strip_prefix("__")).unwrap_or(inner);
    let end = PROCESSORS.iter().filter_map(|processor| inner.find(processor)).min();
    let plain = &inner[..end.unwrap_or(inner.len())];
    (plain.len() < name.len()).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound() {
        let mut names = std::collections::HashSet::new();
        for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let parsed = spec::parse(line).unwrap_or_else(|error| panic!("{error}"));
            let [Item::Functions { values, .. }] = parsed.as_slice() else { panic!("{line}") };
            assert!(!values.is_empty(), "{line}");
            // All arguments have names, and are in order; the result comes last.
            let arguments: Vec<_> = values.iter().filter(|value| !value.is_result).collect();
            assert!(arguments.iter().all(|value| value.name.is_some()), "{line}");
            assert!(values.iter().rev().skip(1).all(|value| !value.is_result), "{line}");
            let places: std::collections::HashSet<_> =
                arguments.iter().map(|value| format!("{:?}", value.word)).collect();
            assert_eq!(places.len(), arguments.len(), "{line}");
        }
        for (name, _) in entries() {
            assert!(names.insert(name), "{name} is there twice");
        }
        assert!(names.len() >= 300, "{}", names.len());
    }

    #[test]
    fn names_inside_the_library() {
        for (name, expected) in [
            ("open", Some("open")),
            ("memcpy@@GLIBC_2.14", Some("memcpy")),
            ("__memmove_avx_unaligned_erms", Some("memmove")),
            ("__strlen_evex", Some("strlen")),
            ("__sin_fma", Some("sin")),
            ("__libc_malloc", Some("malloc")),
            ("__GI___open64", Some("open64")),
            ("__close", Some("close")),
            ("my_open", None),
            ("opened", None),
            ("_", None),
            ("", None),
        ] {
            let found = of(std::iter::once(name));
            let wanted = expected.and_then(|expected| table().get(expected)).map(Vec::as_slice);
            assert_eq!(found, wanted, "{name}");
        }
        assert!(
            is_c_library("libc.so.6") && is_c_library("ld-musl-x86_64.so.1") && !is_c_library("libcurl.so.4")
        );
        assert!(!is_c_library("libcrypt.so.1") && !is_c_library("libmagic.so.1"));
    }
}
