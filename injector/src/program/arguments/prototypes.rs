//! Prototypes of the C library's functions, for which there is rarely debug information.
//!
//! The table `prototypes.txt` has the syntax of [`spec`]. It applies only to the C library itself, because a function `open` of a program
//! may have other parameters.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::program::arguments::spec::{self, Item, ValueSpec};

const TABLE: &str = include_str!("prototypes.txt");

/// The prefixes of the file names of the C library's parts, in glibc and musl.
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

/// Returns whether a library with this file name is a part of the C library.
pub(crate) fn is_c_library(name: &str) -> bool {
    LIBRARIES.iter().any(|known| name.starts_with(known))
}

/// Returns the values of the function of the C library that has one of these names.
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
            // Does not happen: a test parses all lines.
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

/// Returns the public name for an internal one: `memmove` for `__memmove_avx_unaligned_erms`, an implementation for some processors,
/// and `open64` for `__open64` and `__GI___open64`.
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
    use std::path::Path;

    use gprofinject_image::debug::debug_files;
    use gprofinject_image::signatures::{
        DebugInfo, Exported, Place, Pointee, Rest, Shape, Signature, Signatures, Value,
    };
    use object::{Object, ObjectSymbol};

    use super::*;
    use crate::program::arguments::spec::Format;

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

    /// Compares the table with the prototypes in glibc's debug information, if that is installed.
    #[test]
    fn the_table_is_what_glibc_says() {
        let test = "the_table_is_what_glibc_says";
        let mut compared = 0;
        let mut wrong = Vec::new();
        for library in ["/lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libm.so.6"] {
            let Ok(bytes) = std::fs::read(library) else { continue };
            let mut files = debug_files(Path::new(library), &bytes);
            let Some(file) = files.find(|file| DebugInfo::is_in(&file.bytes)) else { continue };
            let info = DebugInfo::read(&file.bytes).expect("debug information");
            let mut signatures = Signatures::new(&info, Exported::read([bytes.as_slice(), &file.bytes]));
            let object = object::File::parse(&*file.bytes).expect("a debug file");
            // The address of an IFUNC is that of another function, which chooses the code.
            let is_function = |flags| match flags {
                object::SymbolFlags::Elf { st_info, .. } => st_info.st_type() == object::elf::STT_FUNC,
                _ => false,
            };
            let symbols: HashMap<&str, u64> = object
                .symbols()
                .filter(|symbol| is_function(symbol.flags()))
                .filter_map(|symbol| Some((without_version(symbol.name().ok()?), symbol.address())))
                .collect();
            for (name, values) in entries() {
                let Some(&address) = symbols.get(name) else { continue };
                let Ok(signature) = signatures.of(address, std::iter::once(name)) else { continue };
                if matches!(signature.rest, None | Some(Rest::Variadic)) {
                    compared += 1;
                    wrong.extend(differences(name, &values, &signature));
                }
            }
        }
        if compared == 0 {
            gprofinject_skip::skipped(test, "no debug information of the C library");
            return;
        }
        println!("{compared} prototypes compared");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(compared > 250, "{compared}");
    }

    /// Returns the differences between a prototype and debug information.
    fn differences(name: &str, values: &[ValueSpec], signature: &Signature) -> Vec<String> {
        let arguments: Vec<_> = values.iter().filter(|value| !value.is_result).collect();
        let of_glibc: Vec<Value> = signature.parameters.iter().flat_map(|p| parts(&p.value)).collect();
        let mut all = Vec::new();
        // The man page of ptrace(2) has more parameters than its declaration.
        let may_have_more = signature.rest == Some(Rest::Variadic) && arguments.len() > of_glibc.len();
        if arguments.len() != of_glibc.len() && !may_have_more {
            all.push(format!("{name}: {} arguments, {} in glibc", arguments.len(), of_glibc.len()));
        }
        for (value, parameter) in arguments.iter().zip(&of_glibc) {
            if !agrees(value, parameter) {
                all.push(format!("{name}: {value:?}, in glibc {parameter:?}"));
            }
        }
        let result = values.iter().find(|value| value.is_result);
        let of_glibc = signature.result.as_ref();
        match (result, of_glibc) {
            (Some(value), Some(result)) if !agrees(value, result) => {
                all.push(format!("{name}: {value:?}, in glibc {result:?}"));
            }
            (Some(value), None) => all.push(format!("{name}: {value:?}, in glibc nothing")),
            _ => {}
        }
        all
    }

    /// Returns the two parts of a complex number, or any other value as it is.
    fn parts(value: &Value) -> Vec<Value> {
        match (&value.ty.shape, value.place) {
            (Shape::Struct(complex), Place::Pair(low, high)) => {
                let part = |index: usize, word| Value {
                    ty: complex.fields[index].ty.clone(),
                    place: Place::Word(word),
                };
                vec![part(0, low), part(1, high)]
            }
            _ => vec![value.clone()],
        }
    }

    fn agrees(spec: &ValueSpec, value: &Value) -> bool {
        let (size, is_pointer) = (value.ty.size, matches!(value.ty.shape, Shape::Pointer(_)));
        let is_integer = matches!(value.ty.shape, Shape::Signed | Shape::Unsigned | Shape::Enum(_));
        let fits = match spec.format {
            Format::Signed { bytes } => {
                size == u64::from(bytes) && matches!(value.ty.shape, Shape::Signed | Shape::Enum(_))
            }
            Format::Unsigned { bytes } => size == u64::from(bytes) && value.ty.shape == Shape::Unsigned,
            Format::Hex { bytes } | Format::Octal { bytes } => size == u64::from(bytes) && is_integer,
            Format::Float { bytes } => size == u64::from(bytes) && value.ty.shape == Shape::Float,
            Format::CString => value.ty.shape == Shape::Pointer(Pointee::Characters),
            Format::FunctionPointer => value.ty.shape == Shape::Pointer(Pointee::Function),
            Format::Address => is_pointer,
            Format::Char | Format::StdString | Format::Enum(_) => false,
        };
        fits && value.place == Place::Word(spec.word)
    }
}
