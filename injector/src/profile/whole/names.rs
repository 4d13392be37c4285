//! The names of functions in the view of the whole process.

use std::borrow::Cow;
use std::collections::HashMap;

use gprofinject_image::names::demangle::demangle;

/// The name of a function in the symbol table, and the file name of its module.
pub(super) struct Name<'p> {
    pub(super) function: Cow<'p, str>,
    pub(super) module: &'p str,
}

/// Returns the names as gprof gets them: with `@module` if two modules have the same one, and in a form that gprof's
/// tables can contain.
///
/// gprof demangles a name only as a whole. A mangled name that gets a module's name is therefore demangled here.
pub(super) fn told_apart(names: &[Name]) -> Vec<String> {
    let mut modules: HashMap<&str, (&str, bool)> = HashMap::new();
    for name in names {
        let (first, several) = modules.entry(&name.function).or_insert((name.module, false));
        *several |= *first != name.module;
    }
    let shown = names.iter().map(|name| {
        let several = modules.get(&*name.function).is_some_and(|(_, several)| *several);
        match several && !name.module.is_empty() {
            true => format!("{}@{}", demangle(&name.function), name.module),
            false => name.function.clone().into_owned(),
        }
    });
    shown.map(|name| harmless(&name)).collect()
}

/// Replaces what would break the lines of a table, and what ends a string of a symbol table.
fn harmless(name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    if name.is_empty() { "?".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_get_their_modules() {
        let name = |function: &'static str, module| Name { function: function.into(), module };
        let names = [
            name("free", "liba.so.1"),
            name("free", "libb.so"),
            name("_ZN3foo3barEi", "liba.so.1"),
            name("_ZN3foo3barEi", "libb.so"),
            name("local", "liba.so.1"),
            name("local", "liba.so.1"),
            name("_ZN1x1yEv", "libb.so"),
            name("a\nb", "libb.so"),
        ];
        let shown = told_apart(&names);
        assert_eq!(
            shown,
            [
                "free@liba.so.1",
                "free@libb.so",
                "foo::bar(int)@liba.so.1",
                "foo::bar(int)@libb.so",
                "local",
                "local",
                "_ZN1x1yEv",
                "a?b"
            ]
        );
    }
}
