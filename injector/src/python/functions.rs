//! Python functions by name, file and line.

use std::fmt::Write as _;

/// A function of a Python program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Function {
    /// The qualified name, or the name before Python 3.11, with the file and the line in brackets.
    pub(crate) name: String,
    /// The path of the source file, as the interpreter knows it.
    pub(crate) file: String,
    /// The line at which the function begins, or 0.
    pub(crate) line: u32,
}

impl Function {
    /// Makes one of what the process says.
    pub(super) fn new(name: &str, file: &str, line: u32) -> Function {
        let mut shown = String::with_capacity(name.len() + file.len().min(64) + 10);
        let _ = match short(file) {
            "" => write!(shown, "{name}"),
            file => write!(shown, "{name} ({file}:{line})"),
        };
        Function { name: shown, file: file.to_owned(), line }
    }
}

/// Returns the last component of a path, and those before it of files that have the same name in each package.
fn short(path: &str) -> &str {
    let start = |end: usize| path[..end].rfind('/').map_or(0, |slash| slash + 1);
    let first = start(path.len());
    match &path[first..] {
        "__init__.py" | "__main__.py" if first > 0 => &path[start(first - 1)..],
        name => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_files() {
        let shown = |name, file| Function::new(name, file, 3).name;
        assert_eq!(shown("C.f", "/usr/lib/python3/json/decoder.py"), "C.f (decoder.py:3)");
        assert_eq!(shown("f", "/usr/lib/python3/json/__init__.py"), "f (json/__init__.py:3)");
        assert_eq!(shown("f", "__init__.py"), "f (__init__.py:3)");
        assert_eq!(shown("f", "/__main__.py"), "f (/__main__.py:3)");
        assert_eq!(shown("<module>", "<string>"), "<module> (<string>:3)");
        assert_eq!((shown("f", ""), shown("f", "a/")), ("f".into(), "f".into()));
    }
}
