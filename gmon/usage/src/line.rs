//! A command line that is being typed: what the shell says of it, and what the shell is answered.
//!
//! zsh and fish divide the line into words, and quote what they insert. bash does neither: it passes the line as it was typed, and
//! replaces what follows the last of its own delimiters, to which `:` and `=` belong.

use std::ffi::OsString;

/// The characters that bash takes as they are, also at the beginning of a word.
fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || "_-./:=+@%,".contains(c) || !c.is_ascii()
}

/// A line that a shell asks about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The words before the one at the cursor, without their quotes. The first one is the command.
    pub before: Vec<String>,
    /// The word at the cursor, up to there.
    pub typed: String,
    form: Form,
}

/// How the shell takes an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Form {
    /// Whole words, which it quotes itself.
    #[default]
    Words,
    /// The rest of the word from this offset in [`Line::typed`] on, quoted as the word is.
    Rest { from: usize, quote: Quote },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Quote {
    #[default]
    None,
    Single,
    Double,
}

impl Line {
    /// Returns the line that a shell asks about. `args` are what the completions of [`Kind::write`](crate::Kind::write) pass. In bash,
    /// these are `bash`, the line up to the cursor, and the part of it that bash will replace. In other shells, they are `words` and
    /// the words up to the cursor.
    pub fn parse(args: &[OsString]) -> Option<Line> {
        let args: Vec<&str> = args.iter().map(|arg| arg.to_str()).collect::<Option<_>>()?;
        match args.as_slice() {
            ["bash", line, replaced] => Line::of_bash(line, replaced),
            ["words", before @ .., typed] => Some(Line {
                before: before.iter().map(|&word| word.to_owned()).collect(),
                typed: (*typed).to_owned(),
                form: Form::Words,
            }),
            _ => None,
        }
    }

    fn of_bash(line: &str, replaced: &str) -> Option<Line> {
        let mut words = words(line)?;
        let Word { text, raw, quote, .. } = words.pop()?;
        let begin = raw.len().checked_sub(replaced.len()).filter(|&begin| raw[begin..] == *replaced)?;
        // The text before what is replaced may have quotes too.
        let from = match quote {
            // bash replaces what follows the quote. It can not have opened within the replaced part.
            Quote::Single | Quote::Double => {
                let mark = raw.get(..begin)?.strip_suffix(['\'', '"'])?;
                self::words(mark)?.pop()?.text.len()
            }
            Quote::None => self::words(raw.get(..begin)?)?.pop()?.text.len(),
        };
        let before = words.into_iter().map(|word| word.text).collect();
        Some(Line { before, typed: text, form: Form::Rest { from, quote } })
    }

    /// Returns a word that the user may mean, as the shell takes it on a line of its own; `None` if it does not begin as what was typed,
    /// or contains a line break.
    pub fn answer(&self, word: &str) -> Option<String> {
        if !word.starts_with(&self.typed) || word.contains(['\n', '\r']) {
            return None;
        }
        match self.form {
            Form::Words => Some(word.to_owned()),
            Form::Rest { from, quote } => Some(closed(quoted(word.get(from..)?, quote, from == 0), quote)),
        }
    }
}

/// Returns the rest of a word in quotes, with the closing quote if bash would take the last character for that. Otherwise bash adds it.
fn closed(text: String, quote: Quote) -> String {
    match quote {
        Quote::Single if text.ends_with('\'') => text + "'",
        Quote::Double if text.ends_with('"') => text + "\"",
        _ => text,
    }
}

fn quoted(text: &str, quote: Quote, is_start: bool) -> String {
    match quote {
        Quote::Single => text.replace('\'', "'\\''"),
        Quote::Double => {
            text.chars().flat_map(|c| "$`\"\\".contains(c).then_some('\\').into_iter().chain([c])).collect()
        }
        Quote::None => {
            let escapes = |(at, c): (usize, char)| !is_plain(c) || at == 0 && is_start && c == '~';
            text.char_indices()
                .flat_map(|(at, c)| escapes((at, c)).then_some('\\').into_iter().chain([c]))
                .collect()
        }
    }
}

/// A word of a line.
#[derive(Default)]
struct Word {
    text: String,
    /// The same as it was typed.
    raw: String,
    /// The quote that is open at the end.
    quote: Quote,
}

/// Returns the words of a line up to the cursor, by the rules of POSIX shells. The last one may be empty. `None` if it has what only a
/// shell can expand.
fn words(line: &str) -> Option<Vec<Word>> {
    let mut words = vec![Word::default()];
    let mut is_escaped = false;
    for c in line.chars() {
        let word = words.last_mut()?;
        if word.quote == Quote::None && !is_escaped && matches!(c, ' ' | '\t' | '\n') {
            if !word.raw.is_empty() {
                words.push(Word::default());
            }
            continue;
        }
        word.raw.push(c);
        if is_escaped {
            // In double quotes, a backslash is one before other characters than these.
            if word.quote == Quote::Double && !"$`\"\\".contains(c) {
                word.text.push('\\');
            }
            word.text.push(c);
            is_escaped = false;
            continue;
        }
        match (word.quote, c) {
            (Quote::None | Quote::Double, '\\') => is_escaped = true,
            (Quote::None, '\'') => word.quote = Quote::Single,
            (Quote::None, '"') => word.quote = Quote::Double,
            (Quote::Single, '\'') | (Quote::Double, '"') => word.quote = Quote::None,
            (Quote::None | Quote::Double, '$' | '`') => return None,
            (_, c) => word.text.push(c),
        }
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bash(line: &str, replaced: &str) -> Option<Line> {
        Line::parse(&["bash", line, replaced].map(OsString::from))
    }

    #[test]
    fn lines_of_bash() {
        let line = bash("gmon flat -f std::ve", "ve").expect("a line");
        assert_eq!((line.before.join(" ").as_str(), line.typed.as_str()), ("gmon flat -f", "std::ve"));
        assert_eq!(line.answer("std::vector<...>::at").as_deref(), Some("vector\\<...\\>::at"));
        assert_eq!(line.answer("main"), None);
        let line = bash("gmon flat -f 'f(a ", "f(a ").expect("a line");
        assert_eq!((line.typed.as_str(), line.before.len()), ("f(a ", 3));
        assert_eq!(line.answer("f(a b)'s").as_deref(), Some("f(a b)'\\''s"));
        let line = bash("gmon flat -f \"f(", "f(").expect("a line");
        assert_eq!(line.answer("f($\"a)").as_deref(), Some("f(\\$\\\"a)"));
        assert_eq!(line.answer("f(\"").as_deref(), Some("f(\\\"\""));
        let line = bash("gmon  flat --function=a\\ b:c", "c").expect("a line");
        assert_eq!((line.before.len(), line.typed.as_str()), (2, "--function=a b:c"));
        assert_eq!(line.answer("--function=a b:c d").as_deref(), Some("c\\ d"));
        let line = bash("gmon flat -f ", "").expect("a line");
        assert_eq!((line.before.len(), line.typed.as_str()), (3, ""));
        assert_eq!(line.answer("~a").as_deref(), Some("\\~a"));
        assert_eq!(line.answer("a::~a").as_deref(), Some("a::\\~a"));
    }

    #[test]
    fn what_is_not_understood() {
        for (line, replaced) in [("gmon $x", "$x"), ("gmon `a", "a"), ("gmon a", "b"), ("gmon \u{e4}", "ab")]
        {
            assert_eq!(bash(line, replaced), None, "{line}");
        }
        assert_eq!(Line::parse(&[]), None);
        assert_eq!(Line::parse(&["words".into()]), None);
    }

    #[test]
    fn lines_of_other_shells() {
        let line = Line::parse(&["words", "gmon", "flat", "m"].map(OsString::from)).expect("a line");
        assert_eq!((line.before.len(), line.typed.as_str()), (2, "m"));
        assert_eq!(line.answer("m n").as_deref(), Some("m n"));
        assert_eq!(line.answer("m\nn"), None);
    }
}
