//! Which argument of a command the word at the cursor is.

use clap::{Arg, Command, ValueHint};

use crate::line::Line;

/// The place of the word at the cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The name of the subcommand, or an empty text.
    pub command: String,
    /// The argument of which it is a value, as clap knows it.
    pub arg: String,
    /// Whether the value is a path.
    pub is_path: bool,
    /// What stands before the value in the same word, such as `--name=` or `-n`.
    pub prefix: String,
    /// The values that the line has before it, with their arguments.
    pub others: Vec<(String, String)>,
}

impl Place {
    /// Returns the place of the word at the cursor of a line, or `None` if that is no value: a subcommand, or an option.
    pub fn of(line: &Line, mut command: Command) -> Option<Place> {
        command.build();
        let mut at =
            Walk { command: &command, pending: None, only_values: false, others: Vec::new(), index: 1 };
        for word in line.before.iter().skip(1) {
            at.pass(word);
        }
        let (arg, prefix) = at.last(&line.typed)?;
        Some(Place {
            command: if at.command.get_name() == command.get_name() { "" } else { at.command.get_name() }
                .to_owned(),
            arg: arg.get_id().to_string(),
            is_path: arg.get_value_hint() == ValueHint::AnyPath,
            prefix,
            others: at.others,
        })
    }

    /// Returns the values that the line has for an argument.
    pub fn values<'a>(&'a self, arg: &'a str) -> impl Iterator<Item = &'a str> {
        self.others.iter().filter(move |(of, _)| of == arg).map(|(_, value)| value.as_str())
    }
}

/// What is known after the first words.
struct Walk<'c> {
    command: &'c Command,
    /// The option of which the next word is the value.
    pending: Option<&'c Arg>,
    /// Whether `--` was there.
    only_values: bool,
    others: Vec<(String, String)>,
    /// The index of the next value without an option, from 1.
    index: usize,
}

impl<'c> Walk<'c> {
    fn pass(&mut self, word: &str) {
        if let Some(arg) = self.pending.take() {
            return self.note(arg, word);
        }
        match word {
            _ if self.only_values => self.positional(word),
            "--" => self.only_values = true,
            "-" => self.positional(word),
            word if word.starts_with('-') => match self.attached(word) {
                Some((arg, prefix)) => self.note(arg, &word[prefix.len()..]),
                None => self.pending = self.waiting(word),
            },
            word => match self.command.find_subcommand(word) {
                Some(command) if self.index == 1 => self.command = command,
                _ => self.positional(word),
            },
        }
    }

    /// Returns the argument of the word at the cursor, and what stands before the value.
    fn last(&self, word: &str) -> Option<(&'c Arg, String)> {
        match self.pending {
            Some(arg) => Some((arg, String::new())),
            None if word.starts_with('-') && !self.only_values => self.attached(word),
            None => self.at_index().map(|arg| (arg, String::new())),
        }
    }

    fn note(&mut self, arg: &Arg, value: &str) {
        self.others.push((arg.get_id().to_string(), value.to_owned()));
    }

    fn positional(&mut self, word: &str) {
        if let Some(arg) = self.at_index() {
            self.note(arg, word);
        }
        self.index += 1;
    }

    /// Returns the argument of a value without an option. The last one may have several.
    fn at_index(&self) -> Option<&'c Arg> {
        let all = || self.command.get_positionals();
        let is_several = |arg: &&Arg| arg.get_num_args().is_some_and(|number| number.max_values() > 1);
        all()
            .find(|arg| arg.get_index() == Some(self.index))
            .or_else(|| all().max_by_key(|arg| arg.get_index()).filter(is_several))
    }

    /// Returns the option of a word that has its value in it, and the part of the word before that.
    fn attached(&self, word: &str) -> Option<(&'c Arg, String)> {
        if let Some(long) = word.strip_prefix("--") {
            let (name, _) = long.split_once('=')?;
            return Some((self.long(name).filter(|arg| takes(arg))?, format!("--{name}=")));
        }
        // Options of one letter, of which the last one may have its value behind it.
        for (at, letter) in word.char_indices().skip(1) {
            let arg = self.short(letter)?;
            let end = at + letter.len_utf8();
            if takes(arg) {
                return (end < word.len()).then(|| (arg, word[..end].to_owned()));
            }
        }
        None
    }

    /// Returns the option of which the next word is the value.
    fn waiting(&self, word: &str) -> Option<&'c Arg> {
        let arg = match word.strip_prefix("--") {
            Some(name) => self.long(name)?,
            None => self.short(word.chars().next_back()?)?,
        };
        // An option whose value follows a `=` has none otherwise.
        Some(arg).filter(|arg| takes(arg) && !arg.is_require_equals_set())
    }

    fn long(&self, name: &str) -> Option<&'c Arg> {
        self.command.get_arguments().find(|arg| {
            arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|all| all.contains(&name))
        })
    }

    fn short(&self, letter: char) -> Option<&'c Arg> {
        self.command.get_arguments().find(|arg| arg.get_short() == Some(letter))
    }
}

fn takes(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::ArgAction;

    use super::*;

    fn place(line: &[&str]) -> Option<Place> {
        let sub = Command::new("sub")
            .arg(Arg::new("name").short('n').long("name").action(ArgAction::Append))
            .arg(Arg::new("all").short('a').long("all").action(ArgAction::SetTrue))
            .arg(Arg::new("html").long("html").num_args(0..=1).require_equals(true))
            .arg(Arg::new("first"))
            .arg(Arg::new("files").num_args(0..).value_hint(ValueHint::AnyPath));
        let words: Vec<OsString> = ["words"].iter().chain(line).map(OsString::from).collect();
        Place::of(&Line::parse(&words)?, Command::new("tool").subcommand(sub))
    }

    #[test]
    fn places() {
        for (line, expected) in [
            (&["tool", "sub", "-n", "m"][..], Some(("name", ""))),
            (&["tool", "sub", "--name", ""], Some(("name", ""))),
            (&["tool", "sub", "--name=m"], Some(("name", "--name="))),
            (&["tool", "sub", "-anm"], Some(("name", "-an"))),
            (&["tool", "sub", "-an", "m"], Some(("name", ""))),
            (&["tool", "sub", "-n"], None),
            (&["tool", "sub", "--na"], None),
            (&["tool", "sub", "--bogus=x"], None),
            (&["tool", "sub", "-z", "x"], Some(("first", ""))),
            (&["tool", "sub", "--html", "x"], Some(("first", ""))),
            (&["tool", "sub", "--html=x"], Some(("html", "--html="))),
            (&["tool", "sub", "-n", "sub", "sub"], Some(("first", ""))),
            (&["tool", "sub", "a", "b", "c"], Some(("files", ""))),
            (&["tool", "sub", "--", "-n", "x"], Some(("files", ""))),
            (&["tool", "su"], None),
        ] {
            let found = place(line);
            let found = found.as_ref().map(|place| (place.arg.as_str(), place.prefix.as_str()));
            assert_eq!(found, expected, "{line:?}");
        }
    }

    #[test]
    fn what_the_line_has_before() {
        let place = place(&["tool", "sub", "-n", "a", "-anb", "x", "--name=c", "y", "z"]).expect("a place");
        assert_eq!(place.values("name").collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(place.values("files").collect::<Vec<_>>(), ["y"]);
        assert_eq!((place.command.as_str(), place.is_path), ("sub", true));
    }
}
