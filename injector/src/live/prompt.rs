//! A line of text that the user types, or a question with one key for an answer.

use gmon_screen::Key;

/// What is being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// The filter. Each key changes what is shown.
    Filter,
    /// The pattern of functions that are switched off, or on.
    Pattern { off: bool },
    /// What happens to the program that gprofinject has started.
    Quit,
}

/// A question with what has been typed up to now.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    pub(crate) question: Question,
    pub(crate) typed: String,
}

/// What a key does to a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// More may follow.
    More,
    Typed(String),
    Never,
}

impl Prompt {
    /// The greatest length of a line in bytes.
    const MOST: usize = 1000;

    pub(crate) fn key(&mut self, key: Key) -> Answer {
        match key {
            Key::Enter => return Answer::Typed(std::mem::take(&mut self.typed)),
            Key::Escape => return Answer::Never,
            Key::Backspace => drop(self.typed.pop()),
            Key::Char(c) if self.question == Question::Quit => return Answer::Typed(c.to_string()),
            Key::Char(c) if self.typed.len() < Prompt::MOST => self.typed.push(c),
            _ => {}
        }
        Answer::More
    }

    /// Returns the text before what is typed.
    pub(crate) fn label(&self) -> &'static str {
        match self.question {
            Question::Filter => "filter (part of a name, or a glob): ",
            Question::Pattern { off: true } => "switch off, GLOB or MODULE!GLOB: ",
            Question::Pattern { off: false } => "switch on, GLOB or MODULE!GLOB: ",
            Question::Quit => {
                "the program still runs: k ends it, w waits for it without this view, Esc goes back "
            }
        }
    }
}
