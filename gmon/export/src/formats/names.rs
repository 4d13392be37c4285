//! Names in formats whose readers know functions by their names alone.

use std::collections::HashMap;

use crate::model::{Function, Run};

/// Returns the names of all functions so that no two are equal. Of those that would be, the ones in libraries get the name of
/// their module, and those of one module their addresses.
pub(crate) fn distinct(run: &Run) -> Vec<String> {
    // What is compared is what readers see: " a b" and "a b" are the same to them.
    let plain: Vec<String> = run.functions.iter().map(visible).collect();
    // The module of the first function of each name, and whether there are others; and how many a module has.
    let mut modules: HashMap<&str, (Option<u32>, bool)> = HashMap::new();
    let mut times: HashMap<(Option<u32>, &str), u32> = HashMap::new();
    for (function, name) in run.functions.iter().zip(&plain) {
        let (first, several) = modules.entry(name).or_insert((function.module, false));
        *several |= *first != function.module;
        *times.entry((function.module, name)).or_default() += 1;
    }
    let name = |(function, plain): (&Function, &String)| {
        let mut name = plain.clone();
        let module = run.module_of(function).filter(|_| function.module != Some(0));
        if let Some(module) =
            module.filter(|_| modules.get(plain.as_str()).is_some_and(|(_, several)| *several))
        {
            name += &format!(" [{}]", one_line(module.name()));
        }
        if times.get(&(function.module, plain.as_str())).is_some_and(|&times| times > 1) {
            name += &format!(" [{:#x}]", function.address);
        }
        name
    };
    run.functions.iter().zip(&plain).map(name).collect()
}

/// Returns a function's name as one line without spaces at its ends, which readers of text drop. It is never empty.
fn visible(function: &Function) -> String {
    match one_line(&function.demangled).trim() {
        "" => format!("{:#x}", function.address),
        name => name.to_owned(),
    }
}

/// Returns a text in which the characters are escaped that would end a line or a field, or that are not seen.
pub(crate) fn one_line(text: &str) -> String {
    gmon::visible(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmon_run::Module;

    #[test]
    fn equal_names_are_told_apart() {
        let module = |path: &str| Module { path: path.to_owned(), ..Module::default() };
        let function = |name: &str, module, address| Function {
            demangled: name.to_owned(),
            module,
            address,
            ..Function::default()
        };
        let run = Run {
            modules: vec![module("/bin/p"), module("/lib/a.so")],
            functions: vec![
                function("f", Some(0), 1),
                function("f", Some(1), 2),
                function("g", Some(1), 3),
                function("h", Some(0), 0x40),
                function("h", Some(0), 0x50),
                function("a\nb", None, 0),
                function("c d", Some(0), 0x60),
                function(" c d", Some(0), 0x70),
                function(" ", Some(0), 0x80),
            ],
            ..Run::default()
        };
        assert_eq!(
            distinct(&run),
            ["f", "f [a.so]", "g", "h [0x40]", "h [0x50]", "a\\nb", "c d [0x60]", "c d [0x70]", "0x80"]
        );
    }
}
