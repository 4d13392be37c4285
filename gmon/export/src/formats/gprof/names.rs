//! The names of functions in the view of the whole process.

use std::borrow::Cow;
use std::collections::HashMap;

use gprofinject_image::names::demangle::demangle;

/// The name of a function in the symbol table, and the file name of its module.
pub(super) struct Name<'p> {
    pub(super) function: &'p str,
    pub(super) module: &'p str,
}

/// Returns the file names of modules so that each is there once: the second `x.so` is `x.so#2`.
pub(super) fn distinct<'n>(modules: impl Iterator<Item = &'n str>) -> Vec<String> {
    let mut times: HashMap<&str, u32> = HashMap::new();
    let name = |name| {
        let times = times.entry(name).or_default();
        *times += 1;
        if *times == 1 { name.to_owned() } else { format!("{name}#{times}") }
    };
    modules.map(name).collect()
}

/// The names that gprof leaves out of its tables, with the calls and the time of their functions (binutils
/// `gprof/gprof.c`, `default_excluded_list`).
const EXCLUDED: [&str; 8] = [
    "_gprof_mcount",
    "mcount",
    "_mcount",
    "__mcount",
    "__mcount_internal",
    "__mcleanup",
    "<locore>",
    "<hicore>",
];

/// Returns the names as gprof gets them: with `@module` if functions of two modules have names that read alike, and in a
/// form that gprof's tables can contain. The program's functions, whose module's name is `program`, keep their names.
///
/// Names stay mangled: gprof demangles what is before the `@` (BFD's `bfd_demangle`).
pub(super) fn told_apart(names: &[Name], program: &str) -> Vec<String> {
    let mut modules: HashMap<Cow<str>, (&str, bool)> = HashMap::new();
    for name in names {
        let (first, several) = modules.entry(essence(name.function)).or_insert((name.module, false));
        *several |= *first != name.module;
    }
    let shown = names.iter().map(|name| {
        let several = modules.get(&essence(name.function)).is_some_and(|(_, several)| *several);
        let is_told = several && name.module != program && !name.module.is_empty();
        match is_told || EXCLUDED.contains(&name.function) {
            true => format!("{}@{}", name.function, name.module),
            false => name.function.to_owned(),
        }
    });
    shown.map(|name| harmless(&name)).collect()
}

/// Returns the part of a name that is read: without the hash that Rust's names end in. Only the names of Rust's newer
/// scheme are demangled for it, because demangling all names would take most of the time.
fn essence(name: &str) -> Cow<'_, str> {
    /// The last component of Rust's older scheme: `h` and 16 digits.
    const HASH: usize = "17h0123456789abcdef".len();
    if name.starts_with("_R") {
        return demangle(name);
    }
    let at = name.starts_with("_ZN").then(|| name.rfind("17h")).flatten().filter(|at| {
        let digits = name.get(at + 3..at + HASH).unwrap_or_default();
        digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    });
    Cow::Borrowed(at.map_or(name, |at| &name[..at]))
}

/// Replaces what would break the lines of a table or one of its columns, what ends a string of a symbol table, and what gprof
/// would pass on to a terminal although it is not seen there.
fn harmless(name: &str) -> String {
    if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return name.to_owned();
    }
    let harmless = |c: char| match c {
        _ if c.is_whitespace() => '_',
        _ => c,
    };
    let name: String = gmon::visible(name).chars().map(harmless).collect();
    if name.is_empty() { "?".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_get_their_modules() {
        let name = |function: &'static str, module| Name { function, module };
        let names = [
            name("free", "liba.so.1"),
            name("free", "libb.so"),
            name("free", "prog"),
            name("_ZN3foo3barEi", "liba.so.1"),
            name("_ZN3foo3barEi", "libb.so"),
            name("local", "liba.so.1"),
            name("local", "liba.so.1"),
            name("_ZN1x1yEv", "libb.so"),
            name("_ZN1r1f17h0123456789abcdefE", "liba.so.1"),
            name("_ZN1r1f17hfedcba9876543210E", "libb.so"),
            name("_RNvCs1_1r1g", "liba.so.1"),
            name("_RNvCs2_1r1g", "libb.so"),
            name("a\nb c", "libb.so"),
            name("mcount", "prog"),
        ];
        let shown = told_apart(&names, "prog");
        assert_eq!(
            shown,
            [
                "free@liba.so.1",
                "free@libb.so",
                "free",
                "_ZN3foo3barEi@liba.so.1",
                "_ZN3foo3barEi@libb.so",
                "local",
                "local",
                "_ZN1x1yEv",
                "_ZN1r1f17h0123456789abcdefE@liba.so.1",
                "_ZN1r1f17hfedcba9876543210E@libb.so",
                "_RNvCs1_1r1g@liba.so.1",
                "_RNvCs2_1r1g@libb.so",
                "a\\nb_c",
                "mcount@prog",
            ]
        );
    }

    #[test]
    fn modules_of_one_name_are_told_apart() {
        let names = ["prog", "x.so", "y.so", "x.so", "x.so"];
        assert_eq!(distinct(names.into_iter()), ["prog", "x.so", "y.so", "x.so#2", "x.so#3"]);
    }
}
