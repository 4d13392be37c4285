//! What processes are labelled with: the value of `GPROFINJECT_LABEL` in their environment.

use std::collections::BTreeSet;
use std::sync::Arc;

use gmon::visible;
use gprofinject_abi::ask;

use crate::os::proc;

/// A label: a text without control characters, empty if a process has none. A process chooses it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Label(Arc<str>);

impl Label {
    /// Returns the label with these bytes, of which the first [`ask::LABEL_MAX`] count.
    pub(crate) fn parse(bytes: &[u8]) -> Label {
        let is_whole = bytes.len() < ask::LABEL_MAX;
        let text = String::from_utf8_lossy(bytes.get(..ask::LABEL_MAX).unwrap_or(bytes));
        // A character may have been cut.
        let text = if is_whole { &text } else { text.trim_end_matches(char::REPLACEMENT_CHARACTER) };
        Label(visible(text).into())
    }

    /// Returns the label in the environment with which a process has begun to execute its program, as far as the kernel shows it.
    pub(crate) fn of_process(pid: i32) -> Label {
        let value = proc::variable(pid, ask::LABEL_VARIABLE.as_bytes()).ok().flatten();
        value.map(|value| Label::parse(&value)).unwrap_or_default()
    }

    /// The label as text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The labels of a run.
#[derive(Debug, Default)]
pub(crate) struct Labels {
    known: BTreeSet<Label>,
}

impl Labels {
    /// The number of labels that are told apart. A recording has the calls of each by themselves.
    const MOST: usize = 1000;
    /// The label that stands for all others.
    const REST: &'static str = "[other labels]";

    /// Returns the label that a process has in the recording.
    pub(crate) fn told_apart(&mut self, label: Label) -> Label {
        if label.0.is_empty() || self.known.contains(&label) {
            return label;
        }
        if self.known.len() >= Labels::MOST {
            return Label(Labels::REST.into());
        }
        self.known.insert(label.clone());
        label
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_values() {
        for (bytes, shown) in [
            (&b"test_one"[..], "test_one"),
            (b"", ""),
            (b"a b/c::d[1-\xc3\xa9]", "a b/c::d[1-\u{e9}]"),
            (b"\x1b[2J\x07\n", "\\u{1b}[2J\\u{7}\\n"),
            (b"a\x00b", "a\\u{0}b"),
            (b"\xff\xfe", "\u{fffd}\u{fffd}"),
        ] {
            assert_eq!(Label::parse(bytes).as_str(), shown);
        }
        assert_eq!(Label::parse(&vec![b'x'; 1 << 20]).as_str().len(), ask::LABEL_MAX);
        // The last character has two bytes.
        let cut = [vec![b'x'; ask::LABEL_MAX - 1], "\u{e9}".as_bytes().to_vec()].concat();
        assert_eq!(Label::parse(&cut).as_str(), "x".repeat(ask::LABEL_MAX - 1));
    }

    #[test]
    fn any_number() {
        let mut labels = Labels::default();
        let mut of = |number: usize| labels.told_apart(Label::parse(number.to_string().as_bytes()));
        let last = (0..5000).map(&mut of).last();
        assert_eq!(last.as_ref().map(Label::as_str), Some(Labels::REST));
        assert_eq!(of(999).as_str(), "999");
        assert_eq!(of(1000).as_str(), Labels::REST);
        assert_eq!(labels.told_apart(Label::default()), Label::default());
    }
}
