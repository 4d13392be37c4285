//! What is shown, and what keys do.

use std::time::Duration;

use gmon_screen::Key;

use crate::live::prompt::{Answer, Prompt, Question};
use crate::live::rows::{self, Filter, Kind, Off, Row, Sort};
use crate::live::snapshot::{Snapshot, Wants};

/// What a user asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Leave the view: the process is left, or another gprofinject goes on without this one.
    Quit,
    /// End the program that gprofinject has started.
    End,
    /// Leave the view, and wait for the end of that program.
    Wait,
    Reset,
    /// Stop counting, or go on.
    Pause(bool),
    Dump,
    Switch {
        pattern: String,
        off: bool,
    },
    /// Another snapshot is needed at once.
    Refresh,
}

/// What the view is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A program that this gprofinject has started. Whether its output goes to a file that can be shown.
    Started { has_output: bool },
    /// A process that is left when the view ends.
    Attached,
    /// A process that another gprofinject profiles.
    Others,
}

/// The shortest and the longest interval between two snapshots.
pub(crate) const SHORTEST: Duration = Duration::from_millis(100);
pub(crate) const LONGEST: Duration = Duration::from_secs(3600);

/// What is shown.
pub(crate) struct Model {
    pub(crate) subject: Subject,
    pub(crate) now: Option<Snapshot>,
    before: Option<Snapshot>,
    pub(crate) kind: Kind,
    pub(crate) sort: Sort,
    /// Whether the user has chosen by what rows are sorted.
    is_order_chosen: bool,
    pub(crate) reversed: bool,
    pub(crate) filter: Filter,
    /// The module whose functions are shown, and no others; or the argument whose values are shown.
    pub(crate) within: Option<String>,
    /// The thread whose functions are shown, and no others.
    pub(crate) thread: Option<u32>,
    /// The process whose functions are shown; `None` for the first one.
    pub(crate) pid: Option<i32>,
    pub(crate) rows: Vec<Row>,
    /// The index of the selected row, and of the first one that is shown.
    pub(crate) selected: usize,
    pub(crate) first: usize,
    /// What identifies the selected row, unless it is the first one.
    followed: Option<(u32, u64)>,
    /// The number of rows that fit.
    pub(crate) page: usize,
    /// Whether the display stands still. The process counts on.
    pub(crate) is_frozen: bool,
    pub(crate) prompt: Option<Prompt>,
    pub(crate) message: Option<String>,
    /// Whether a snapshot has come that was not shown yet.
    pub(crate) is_fresh: bool,
    pub(crate) shows_help: bool,
    pub(crate) shows_output: bool,
    pub(crate) interval: Duration,
}

impl Model {
    pub(crate) fn new(subject: Subject, interval: Duration) -> Model {
        Model {
            subject,
            now: None,
            before: None,
            kind: Kind::Functions,
            sort: Sort::Time,
            is_order_chosen: false,
            reversed: false,
            filter: Filter::default(),
            within: None,
            thread: None,
            pid: None,
            rows: Vec::new(),
            selected: 0,
            first: 0,
            followed: None,
            page: 1,
            is_frozen: false,
            prompt: None,
            message: None,
            is_fresh: false,
            shows_help: false,
            shows_output: false,
            interval,
        }
    }

    /// Returns what the next snapshot must contain.
    pub(crate) fn wants(&self) -> Wants {
        Wants { threads: self.kind == Kind::Threads, thread: self.thread }
    }

    /// Whether there are two snapshots of the process, and so calls per second.
    pub(crate) fn has_rates(&self) -> bool {
        self.before.is_some()
    }

    /// Takes a new snapshot, unless the display stands still.
    pub(crate) fn take(&mut self, snapshot: Snapshot) {
        if self.is_frozen {
            return;
        }
        let is_same = self.now.as_ref().is_some_and(|now| now.pid == snapshot.pid);
        self.before = self.now.take().filter(|_| is_same);
        self.now = Some(snapshot);
        self.is_fresh = true;
        self.arrange();
    }

    /// Makes the rows anew. The row with the same function stays selected.
    fn arrange(&mut self) {
        let Some(now) = &self.now else { return };
        if !self.is_order_chosen {
            self.sort = if now.is_measured || now.rate > 0 { Sort::Time } else { Sort::Calls };
        }
        // A filter that is being typed may match nothing for a while.
        let selected = match self.rows.get(self.selected) {
            Some(row) => Some(row.id).filter(|_| self.selected > 0),
            None => self.followed,
        };
        self.followed = selected;
        self.rows = rows::rows(now, self.before.as_ref(), self.kind, &self.filter, self.within.as_deref());
        rows::sort(&mut self.rows, self.sort, self.reversed);
        // At the top, the row with the most stays selected, whichever that is.
        if selected.is_some() {
            let found = self.rows.iter().position(|row| Some(row.id) == selected);
            self.selected = found.unwrap_or(self.selected);
        }
        self.scroll();
    }

    /// Keeps the selected row among those that are shown.
    pub(crate) fn scroll(&mut self) {
        self.selected = self.selected.min(self.rows.len().saturating_sub(1));
        let page = self.page.max(1);
        if self.selected < self.first {
            self.first = self.selected;
        } else if self.selected >= self.first + page {
            self.first = self.selected + 1 - page;
        }
    }

    /// Shows rows of another kind.
    fn show(&mut self, kind: Kind) -> Option<Action> {
        (self.kind, self.selected, self.first) = (kind, 0, 0);
        self.filter = Filter::default();
        (self.within, self.thread, self.rows, self.followed) = (None, None, Vec::new(), None);
        self.arrange();
        Some(Action::Refresh)
    }

    fn order(&mut self, by: Sort) {
        // The first key chooses what may be the order already.
        self.reversed = self.is_order_chosen && self.sort == by && !self.reversed;
        (self.sort, self.is_order_chosen) = (by, true);
        (self.selected, self.first) = (0, 0);
        self.arrange();
    }

    /// Handles a key. Returns what the user asks for, if it cannot be done here.
    pub(crate) fn key(&mut self, key: Key) -> Option<Action> {
        if let Some(prompt) = &mut self.prompt {
            let answer = prompt.key(key);
            return self.answer(answer);
        }
        self.message = None;
        if self.shows_help {
            self.shows_help = false;
            return None;
        }
        let page = self.page.max(1);
        match key {
            Key::Char('q') => match self.subject {
                Subject::Started { .. } => self.ask(Question::Quit),
                Subject::Attached | Subject::Others => return Some(Action::Quit),
            },
            Key::Char('?') => self.shows_help = true,
            Key::Char('o') if matches!(self.subject, Subject::Started { has_output: true }) => {
                self.shows_output = !self.shows_output;
            }
            Key::Char('f') => return self.show(Kind::Functions),
            Key::Char('m') => return self.show(Kind::Modules),
            Key::Char('h') => return self.show(Kind::Threads),
            Key::Char('v') if !self.has_values() => {
                self.message =
                    Some("no values are kept: gprofinject --values keeps those of arguments".to_owned());
            }
            Key::Char('v') => return self.show(Kind::Values),
            Key::Tab => {
                return self.show(match self.kind {
                    Kind::Functions => Kind::Modules,
                    Kind::Modules => Kind::Threads,
                    Kind::Threads if self.has_values() => Kind::Values,
                    Kind::Threads | Kind::Values => Kind::Functions,
                });
            }
            Key::Char('c') => self.order(Sort::Calls),
            Key::Char('s') => self.order(Sort::Rate),
            Key::Char('t') => self.order(Sort::Time),
            Key::Char('n') => self.order(Sort::Name),
            Key::Char('/') => {
                self.ask(Question::Filter);
                if let Some(prompt) = &mut self.prompt {
                    prompt.typed.clone_from(&self.filter.typed);
                }
            }
            Key::Char(' ') => {
                self.is_frozen = !self.is_frozen;
                return (!self.is_frozen).then_some(Action::Refresh);
            }
            Key::Char('z') => return Some(Action::Reset),
            Key::Char('P') => {
                return Some(Action::Pause(!self.now.as_ref().is_some_and(|now| now.is_paused)));
            }
            Key::Char('d') => return Some(Action::Dump),
            Key::Char('X') => self.ask(Question::Pattern { off: true }),
            Key::Char('E') => self.ask(Question::Pattern { off: false }),
            Key::Char('x') => return self.switch(true),
            Key::Char('e') => return self.switch(false),
            Key::Char('l') => return self.switch_module(),
            Key::Char('p') => return self.next_process(),
            Key::Char('+') => self.interval = (self.interval / 2).max(SHORTEST),
            Key::Char('-') => self.interval = (self.interval * 2).min(LONGEST),
            Key::Char('k') | Key::Up => self.selected = self.selected.saturating_sub(1),
            Key::Char('j') | Key::Down => self.selected += 1,
            Key::PageUp => self.selected = self.selected.saturating_sub(page),
            Key::PageDown => self.selected += page,
            Key::Home => self.selected = 0,
            Key::End => self.selected = usize::MAX,
            Key::Enter => return self.enter(),
            Key::Escape | Key::Backspace => {
                let back = match self.kind {
                    Kind::Values => Kind::Values,
                    _ if self.thread.is_some() => Kind::Threads,
                    _ => Kind::Modules,
                };
                match self.thread.is_some() || self.within.is_some() {
                    true => return self.show(back),
                    false => self.filter = Filter::default(),
                }
                self.arrange();
            }
            Key::Char(_) | Key::Left | Key::Right | Key::BackTab => {}
        }
        self.scroll();
        None
    }

    fn ask(&mut self, question: Question) {
        self.prompt = Some(Prompt { question, typed: String::new() });
    }

    fn answer(&mut self, answer: Answer) -> Option<Action> {
        let prompt = self.prompt.as_ref()?;
        let (question, typed) = (prompt.question, prompt.typed.clone());
        if answer != Answer::More {
            self.prompt = None;
        }
        match (question, answer) {
            (Question::Filter, Answer::More) => self.filter = Filter::new(&typed),
            (Question::Filter, Answer::Typed(text)) => self.filter = Filter::new(&text),
            (Question::Filter, Answer::Never) => self.filter = Filter::default(),
            (Question::Pattern { off }, Answer::Typed(pattern)) if !pattern.is_empty() => {
                return Some(Action::Switch { pattern, off });
            }
            (Question::Quit, Answer::Typed(key)) => match key.as_str() {
                "k" => return Some(Action::End),
                "w" => return Some(Action::Wait),
                _ => {}
            },
            _ => {}
        }
        self.arrange();
        None
    }

    /// Whether values of arguments are kept.
    fn has_values(&self) -> bool {
        self.now.as_ref().is_some_and(|now| !now.values.is_empty())
    }

    /// Returns the rows of arguments.
    pub(crate) fn values(&self) -> Vec<Row> {
        let Some(now) = &self.now else { return Vec::new() };
        rows::rows(now, self.before.as_ref(), Kind::Values, &Filter::default(), None)
    }

    /// Shows the functions of the selected module or thread, or the values of the selected argument.
    fn enter(&mut self) -> Option<Action> {
        let row = self.rows.get(self.selected)?.clone();
        let (kind, within, thread) = match self.kind {
            Kind::Functions => return None,
            Kind::Values if self.within.is_some() => return None,
            Kind::Values => (Kind::Values, Some(row.name), None),
            Kind::Modules => (Kind::Functions, Some(row.name), None),
            Kind::Threads => (Kind::Functions, None, Some(row.id.1 as u32)),
        };
        self.show(kind);
        (self.within, self.thread) = (within, thread);
        self.arrange();
        Some(Action::Refresh)
    }

    /// Switches the functions of the selected row.
    fn switch(&mut self, off: bool) -> Option<Action> {
        let row = self.rows.get(self.selected)?;
        if row.pattern.is_empty() {
            self.message = Some("it is not hooked, so it cannot be switched".to_owned());
            return None;
        }
        Some(Action::Switch { pattern: row.pattern.clone(), off })
    }

    /// Switches the module of the selected row off, or on if some of its functions are off.
    fn switch_module(&mut self) -> Option<Action> {
        let row = self.rows.get(self.selected)?;
        let name = match self.kind {
            Kind::Functions => &row.more,
            Kind::Modules => &row.name,
            Kind::Threads | Kind::Values => return None,
        };
        let name = name.clone();
        let modules = rows::rows(self.now.as_ref()?, None, Kind::Modules, &Filter::default(), None);
        let module = modules.into_iter().find(|module| module.name == name && !module.pattern.is_empty());
        let Some(module) = module else {
            self.message = Some("its module is not hooked, so it cannot be switched".to_owned());
            return None;
        };
        Some(Action::Switch { pattern: module.pattern, off: module.off == Off::None })
    }

    fn next_process(&mut self) -> Option<Action> {
        let now = self.now.as_ref()?;
        let index = now.processes.iter().position(|(pid, _)| *pid == now.pid).unwrap_or(0);
        let (next, _) = now.processes.get((index + 1) % now.processes.len().max(1))?;
        self.pid = Some(*next);
        Some(Action::Refresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::snapshot::Function;

    fn model() -> Model {
        let mut model = Model::new(Subject::Attached, Duration::from_secs(1));
        model.page = 3;
        model.take(snapshot(1, 0));
        model.take(snapshot(2, 100));
        model
    }

    /// Functions a to j, of which the first is called most often.
    fn snapshot(seconds: u64, more: u64) -> Snapshot {
        let function = |n: u64| Function {
            id: n,
            name: char::from(b'a' + n as u8).to_string(),
            calls: 1000 - 10 * n + more * n,
            samples: n,
            is_hooked: n < 9,
            ..Function::default()
        };
        let functions = (0..10).map(function).collect();
        Snapshot {
            ns: seconds * 1_000_000_000,
            rate: 1000,
            pid: 7,
            processes: vec![(7, "prog".into()), (9, "child".into())],
            modules: vec!["prog".into()],
            functions,
            ..Snapshot::default()
        }
    }

    fn names(model: &Model) -> String {
        model.rows.iter().map(|row| row.name.as_str()).collect()
    }

    fn type_in(model: &mut Model, keys: &str) -> Option<Action> {
        gmon_screen::keys(keys.as_bytes()).into_iter().filter_map(|key| model.key(key)).last()
    }

    #[test]
    fn sorted_by_a_key_and_reversed_by_the_same() {
        let mut model = model();
        assert_eq!(names(&model), "jihgfedcba");
        type_in(&mut model, "n");
        assert_eq!(names(&model), "abcdefghij");
        type_in(&mut model, "n");
        assert_eq!(names(&model), "jihgfedcba");
        type_in(&mut model, "t");
        assert_eq!(names(&model), "jihgfedcba");
        type_in(&mut model, "ctt");
        assert_eq!(names(&model), "abcdefghij");
    }

    #[test]
    fn a_filter_shows_while_it_is_typed_and_escape_removes_it() {
        let mut model = model();
        type_in(&mut model, "n/[a-c]");
        assert_eq!(names(&model), "abc");
        type_in(&mut model, "\x7f");
        // Without its end it is a text.
        assert_eq!(names(&model), "");
        type_in(&mut model, "]\r");
        assert_eq!((names(&model).as_str(), model.prompt.is_some()), ("abc", false));
        type_in(&mut model, "\x1b");
        assert_eq!(names(&model), "abcdefghij");
    }

    #[test]
    fn a_frozen_display_takes_nothing() {
        let mut model = model();
        assert_eq!(type_in(&mut model, " "), None);
        model.take(snapshot(9, 5000));
        assert_eq!(model.now.as_ref().map(|now| now.ns), Some(2_000_000_000));
        assert_eq!(type_in(&mut model, " "), Some(Action::Refresh));
        model.take(snapshot(9, 5000));
        assert_eq!(model.now.as_ref().map(|now| now.ns), Some(9_000_000_000));
    }

    #[test]
    fn the_selected_function_stays_selected() {
        let mut model = model();
        type_in(&mut model, "njjjj");
        assert_eq!((model.selected, model.first), (4, 2));
        type_in(&mut model, "/[c-j]\r");
        assert_eq!(model.rows[model.selected].name, "e");
        type_in(&mut model, "\x1b[F");
        assert_eq!((model.selected, model.first), (7, 5));
        type_in(&mut model, "\x1b[H");
        assert_eq!((model.selected, model.first), (0, 0));
    }

    #[test]
    fn what_is_asked_for() {
        let mut model = model();
        let switch = |pattern: &str, off| Some(Action::Switch { pattern: pattern.to_owned(), off });
        assert_eq!(type_in(&mut model, "nx"), switch("prog!a", true));
        assert_eq!(type_in(&mut model, "je"), switch("prog!b", false));
        assert_eq!(type_in(&mut model, "l"), switch("prog!*", true));
        assert_eq!(type_in(&mut model, "\x1b[Fx"), None);
        assert!(model.message.is_some());
        assert_eq!(type_in(&mut model, "Xlib*!q*\r"), switch("lib*!q*", true));
        assert_eq!(type_in(&mut model, "X\r"), None);
        assert_eq!(type_in(&mut model, "m"), Some(Action::Refresh));
        assert_eq!(type_in(&mut model, "x"), switch("prog!*", true));
        assert_eq!(type_in(&mut model, "z"), Some(Action::Reset));
        assert_eq!(type_in(&mut model, "d"), Some(Action::Dump));
        assert_eq!(type_in(&mut model, "P"), Some(Action::Pause(true)));
        assert_eq!(type_in(&mut model, "p"), Some(Action::Refresh));
        assert_eq!(model.pid, Some(9));
        assert_eq!(type_in(&mut model, "q"), Some(Action::Quit));
    }

    #[test]
    fn values_of_an_argument() {
        use crate::live::snapshot::Argument;

        let mut model = model();
        assert_eq!(type_in(&mut model, "v"), None);
        assert!(model.message.is_some());
        let argument = |name: &str, calls, values: &[(&str, u64)]| Argument {
            name: name.to_owned(),
            calls,
            summary: "mean 3".to_owned(),
            values: values.iter().map(|(value, calls)| ((*value).to_owned(), *calls)).collect(),
        };
        let at = |seconds, more| Snapshot {
            values: vec![argument("f n", 10 + more, &[("3", 8 + more), ("4", 2)]), argument("g n", 5, &[])],
            ..snapshot(seconds, more)
        };
        model.take(at(3, 0));
        model.take(at(4, 20));
        assert_eq!(type_in(&mut model, "v"), Some(Action::Refresh));
        type_in(&mut model, "n");
        let row = |row: &Row| (row.name.clone(), row.more.clone(), row.calls, row.rate);
        let expected = [("f n", "mean 3", 30, Some(20.0)), ("g n", "mean 3", 5, Some(0.0))];
        let expected =
            expected.map(|(name, more, calls, rate)| (name.to_owned(), more.to_owned(), calls, rate));
        assert_eq!(model.rows.iter().map(row).collect::<Vec<_>>(), expected);
        type_in(&mut model, "\r");
        let values: Vec<_> = model.rows.iter().map(|row| (row.name.as_str(), row.calls)).collect();
        assert_eq!(values, [("3", 28), ("4", 2)]);
        type_in(&mut model, "\x1b");
        assert_eq!((model.rows.len(), model.kind), (2, Kind::Values));
        type_in(&mut model, "\t");
        assert_eq!(model.kind, Kind::Functions);
    }

    #[test]
    fn a_program_that_was_started_is_not_ended_by_one_key() {
        let mut model = Model::new(Subject::Started { has_output: true }, Duration::from_secs(1));
        assert_eq!(type_in(&mut model, "q"), None);
        assert_eq!(type_in(&mut model, "x"), None);
        assert_eq!(type_in(&mut model, "qw"), Some(Action::Wait));
        assert_eq!(type_in(&mut model, "qk"), Some(Action::End));
    }
}
