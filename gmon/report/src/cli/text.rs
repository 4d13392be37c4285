//! The text that reports have in common: names, patterns, colours.

use std::io::{self, BufWriter, StdoutLock};

use gmon::EscapedJson;
use gprofinject_image::names::demangle::{any_spelling, demangle};

pub(crate) use gmon_export::values::percent;

use crate::cli::report_args::When;
use crate::cli::{pager, terminal};

/// Where reports are written. Text escapes hidden characters in its own way before; what comes here with some is JSON.
pub(crate) type Out = BufWriter<EscapedJson<StdoutLock<'static>>>;

/// Returns standard output for a report, or the pager that reads it.
pub(crate) fn standard_output() -> Out {
    pager::start();
    BufWriter::with_capacity(1 << 16, EscapedJson(io::stdout().lock()))
}

/// Returns a name as it is in the source, with hidden characters escaped.
pub(crate) fn demangled(name: &str) -> String {
    plain(&demangle(name))
}

/// Returns a text with hidden characters escaped.
pub(crate) fn plain(text: &str) -> String {
    gmon::visible(text).into_owned()
}

/// Returns the last component of a path, with hidden characters escaped.
pub(crate) fn file_name(path: &str) -> String {
    plain(path.rsplit('/').next().unwrap_or(path))
}

/// Returns what a function without a name is called: its link address.
pub(crate) fn address_name(address: u64) -> String {
    format!("{address:#x}")
}

/// Whether the whole text matches a pattern with `*` and `?`.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // The position after the last `*`, and the text of which it may have to match one more character.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                p += 1;
                retry = Some((p, t));
            }
            Some(&c) if c == '?' || c == text[t] => (p, t) = (p + 1, t + 1),
            _ => match retry {
                Some((behind, from)) => {
                    (p, t) = (behind, from + 1);
                    retry = Some((behind, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

/// Whether a path matches one of the patterns, as a whole or in its last components. If there is no pattern,
/// every path does.
pub(crate) fn chosen_path(patterns: &[String], path: &str) -> bool {
    let any = |pattern: &String| matches(pattern, path) || matches(&format!("*/{pattern}"), path);
    patterns.is_empty() || patterns.iter().any(any)
}

/// Whether a label is one of the patterns or matches one. Labels may have the special characters of patterns.
pub(crate) fn chosen_label(patterns: &[String], label: &str) -> bool {
    patterns.iter().any(|pattern| pattern == label || matches(pattern, label))
}

/// Whether a function's name, in one of its [spellings](any_spelling), matches one of the patterns. If there is no pattern, every name
/// does.
pub(crate) fn chosen_function(patterns: &[String], name: &str) -> bool {
    patterns.is_empty()
        || any_spelling(name, |spelling| {
            patterns.iter().any(|pattern| matches(pattern, &gmon::visible(spelling)))
        })
}

/// Whether a function's name matches one of the patterns, which may be `MODULE!FUNCTION`. If there is no pattern, every name does.
pub(crate) fn chosen_in_module(patterns: &[String], module: &str, name: &str) -> bool {
    let any = |pattern: &String| match split_module(pattern) {
        None => chosen_function(std::slice::from_ref(pattern), name),
        Some((wanted, function)) => {
            let function = if function.is_empty() { "*" } else { function };
            chosen_path(&[wanted.to_owned()], module) && chosen_function(&[function.to_owned()], name)
        }
    };
    patterns.is_empty() || patterns.iter().any(any)
}

/// Returns the parts of `MODULE!FUNCTION`. The names of functions contain no exclamation mark, except those of C++ operators, before
/// which a module's name would end in the word `operator`.
fn split_module(pattern: &str) -> Option<(&str, &str)> {
    let mut splits = pattern.match_indices('!').map(|(at, _)| (&pattern[..at], &pattern[at + 1..]));
    splits.find(|(module, _)| !module.ends_with("operator"))
}

/// Whether a name would be taken for a pattern `MODULE!FUNCTION`.
pub(crate) fn splits(name: &str) -> bool {
    split_module(name).is_some()
}

/// The depth from which names are not indented further. Deeper ones have their depth in front.
pub(crate) const MAX_INDENT: u32 = 40;

/// Returns what stands in front of a name with that many callers, of which `most` are shown as spaces.
pub(crate) fn indent(callers: u32, most: u32) -> String {
    let spaces = "  ".repeat(callers.min(most) as usize);
    if callers > most { format!("{spaces}({callers}) ") } else { spaces }
}

/// How output looks: its colours, and the number of columns that it may take.
#[derive(Clone, Copy)]
pub(crate) struct Style {
    on: bool,
    /// `None` if lines may have any length.
    width: Option<usize>,
}

impl Style {
    /// Returns the colours that the option and the environment ask for.
    pub(crate) fn new(when: Option<When>) -> Style {
        let on = match when.unwrap_or(When::Auto) {
            When::Always => true,
            When::Never => false,
            When::Auto => {
                let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
                let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
                terminal::size().is_some() && !set("NO_COLOR") && !dumb
            }
        };
        Style { on, width: terminal::size().map(|size| size.columns) }
    }

    /// Returns the number of columns that a line may take; `None` if it may take any.
    pub(crate) fn width(self) -> Option<usize> {
        self.width
    }

    /// Returns a text with a line break in front of each word for which there is no room on a line.
    pub(crate) fn wrap(self, text: &str) -> String {
        let Some(width) = self.width else { return text.to_owned() };
        let (mut wrapped, mut column) = (String::with_capacity(text.len()), 0);
        for word in text.split_inclusive(' ') {
            let length = word.trim_end().chars().count();
            if column > 0 && column + length > width {
                wrapped.truncate(wrapped.trim_end().len());
                wrapped.push('\n');
                column = 0;
            }
            wrapped += word;
            column += word.chars().count();
        }
        wrapped
    }

    /// Returns the same with another width.
    #[cfg(test)]
    pub(crate) fn of_width(self, width: usize) -> Style {
        Style { width: Some(width), ..self }
    }

    fn paint(self, code: &str, text: String) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text }
    }

    /// Colours a count in the margin, which already has its width, so that what never ran stands out.
    pub(crate) fn count(self, count: Option<u64>, text: String) -> String {
        match count {
            Some(0) => self.paint("31", text),
            Some(_) => text,
            None => self.faint(text),
        }
    }

    /// Colours a heading.
    pub(crate) fn heading(self, text: &str) -> String {
        self.paint("1", text.to_owned())
    }

    /// Colours what is less important.
    pub(crate) fn faint(self, text: String) -> String {
        self.paint("2", text)
    }
}

/// Returns a count as gcov writes it: `#####` for 0. What was not counted is blank.
pub(crate) fn margin(count: Option<u64>) -> String {
    match count {
        Some(0) => "#####".to_owned(),
        Some(count) => count.to_string(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text) in [("*", ""), ("a*c", "abbc"), ("a*b*c", "axbybc"), ("?b", "ab"), ("**", "x")] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("", "a"), ("a", ""), ("a*c", "ab"), ("?", ""), ("a?", "a")] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
        let chosen = |pattern: &str, path| chosen_path(&[pattern.to_owned()], path);
        assert!(chosen("a.c", "/x/a.c") && chosen("x/*.c", "/x/a.c") && chosen("/x/*", "/x/y/a.c"));
        assert!(!chosen("a.c", "/x/ba.c"));
        let function = |pattern: &str| chosen_function(&[pattern.to_owned()], "_ZN3foo3barEi");
        assert!(
            function("foo::bar")
                && function("foo::bar(int)")
                && function("_ZN3foo*")
                && function("bar")
                && !function("foo")
        );
    }

    #[test]
    fn patterns_with_modules() {
        let chosen = |pattern: &str, module, name| chosen_in_module(&[pattern.to_owned()], module, name);
        assert!(chosen("libm.so.6!s*", "/lib/libm.so.6", "sin") && chosen("*!sin", "/lib/libm.so.6", "sin"));
        assert!(chosen("libm*!", "/lib/libm.so.6", "cos") && chosen("sin", "/lib/libm.so.6", "sin"));
        assert!(
            !chosen("prog!sin", "/lib/libm.so.6", "sin") && !chosen("libm*!sin", "/lib/libm.so.6", "cos")
        );
        assert!(chosen("operator!", "prog", "operator!") && chosen("prog!operator!=", "prog", "operator!="));
    }

    #[test]
    fn texts_are_wrapped() {
        let style = Style::new(Some(When::Never));
        assert_eq!(style.of_width(9).wrap("one two three fourteenth"), "one two\nthree\nfourteenth");
        assert_eq!(style.of_width(0).wrap(""), "");
    }

    #[test]
    fn names() {
        assert_eq!(demangled("_ZN3foo3barEi"), "foo::bar(int)");
        assert_eq!(demangled("main"), "main");
        assert_eq!(demangled("a\x1b[31m\u{202e}"), "a\\u{1b}[31m\\u{202e}");
    }
}
