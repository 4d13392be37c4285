//! What is shown, and what keys do.

pub(crate) mod code;
pub(crate) mod functions;
pub(crate) mod graph;
pub(crate) mod help;

use gmon_export::Run;
use gmon_screen::Key;

use crate::browse::assembly::Assembly;
use crate::browse::chosen::{Choice, Chosen};
use crate::browse::data::Data;
use crate::browse::flame::frame::Of;
use crate::browse::flame::layout::Flame;
use crate::browse::flame::paths::Paths;
use crate::browse::list::List;
use crate::browse::model::code::Code;
use crate::browse::model::functions::Functions;
use crate::browse::model::graph::Graph;
use crate::browse::model::help::HELP;
use crate::browse::source::SourceText;
use crate::browse::worker::{Answer, Request};

/// A view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Functions,
    Graph,
    Flame,
    Source,
    Assembly,
    Programs,
}

/// The views in the order of their keys, from 1 on, with their names.
pub(crate) const VIEWS: [(View, &str); 6] = [
    (View::Functions, "functions"),
    (View::Graph, "graph"),
    (View::Flame, "flame"),
    (View::Source, "source"),
    (View::Assembly, "assembly"),
    (View::Programs, "programs"),
];

/// What the user asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Quit,
    Ask(Request),
}

/// What is shown.
pub(crate) struct Model {
    pub(crate) data: Data,
    /// The file name of the only module whose functions are listed.
    module: Option<String>,
    pub(crate) view: View,
    /// The function of the views of one function.
    pub(crate) function: Option<u32>,
    pub(crate) functions: Functions,
    pub(crate) graph: Graph,
    /// The functions of which the graph was shown before, with the selected rows.
    walked: Vec<(u32, usize)>,
    /// `None` until the view is opened.
    pub(crate) flame: Option<Flame>,
    pub(crate) source: Code<SourceText>,
    pub(crate) assembly: Code<Assembly>,
    pub(crate) choices: Vec<Choice>,
    pub(crate) programs: List,
    /// What is shown of the run, and what is being read instead.
    pub(crate) chosen: Chosen,
    pub(crate) awaited: Option<Chosen>,
    /// Whether a text to search for is being typed.
    pub(crate) is_typing: bool,
    pub(crate) shows_help: bool,
    pub(crate) help: List,
    pub(crate) has_full_names: bool,
    pub(crate) message: Option<String>,
}

impl Model {
    /// Returns the model of a run. `module` is the file name of the only module whose functions are listed, if not all are.
    pub(crate) fn new(run: Run, choices: Vec<Choice>, module: Option<String>) -> Model {
        let data = Data::new(run, module.clone());
        Model {
            functions: Functions::new(&data),
            data,
            module,
            view: View::Functions,
            function: None,
            graph: Graph::default(),
            walked: Vec::new(),
            flame: None,
            source: Code::default(),
            assembly: Code::default(),
            programs: List::new(choices.len(), 0),
            choices,
            chosen: Chosen::All,
            awaited: None,
            is_typing: false,
            shows_help: false,
            help: List::default(),
            has_full_names: false,
            message: None,
        }
    }

    /// Takes what the worker has read.
    pub(crate) fn take(&mut self, answer: Answer) {
        match answer {
            Answer::Source(symbol, read) => {
                self.source.take(symbol, read.map(|text| (text.lines.len(), text.start, text)).map(order));
            }
            Answer::Assembly(symbol, read) => {
                self.assembly.take(symbol, read.map(|code| (code.rows.len(), code.start, code)).map(order));
            }
            Answer::Chosen(chosen, _) if self.awaited != Some(chosen) => {}
            Answer::Chosen(chosen, read) => {
                self.awaited = None;
                match read {
                    Ok(run) => self.replace(chosen, *run),
                    Err(error) => self.message = Some(error),
                }
            }
        }
    }

    /// Shows another part of the run, or the same one with more numbers.
    fn replace(&mut self, chosen: Chosen, run: Run) {
        let data = Data::new(run, self.module.clone());
        let moved = |index: Option<u32>| self.data.symbol(index?).and_then(|symbol| data.find(&symbol));
        let (function, selected, of_graph) =
            (moved(self.function), moved(self.functions.chosen()), moved(self.graph.function));
        let at_top = self.functions.list.selected == 0;
        self.data = data;
        if self.view == View::Programs && self.chosen != chosen {
            self.view = View::Functions;
        }
        self.chosen = chosen;
        self.function = function;
        if !self.data.sorts().contains(&self.functions.sort) {
            self.functions.sort = Functions::new(&self.data).sort;
        }
        self.functions.arrange(&self.data, selected.filter(|_| !at_top));
        self.graph = of_graph.map_or_else(Graph::default, |function| Graph::of(&self.data, function));
        self.walked.clear();
        self.flame = None;
        (self.source, self.assembly) = (Code::default(), Code::default());
    }

    /// Asks for the counts of basic blocks, which are not read before the first view is shown.
    pub(crate) fn complete(&mut self) -> Action {
        self.awaited = Some(self.chosen);
        Action::Ask(Request::Choose(self.chosen))
    }

    /// Handles a key. Returns what the user asks for, if it cannot be done here.
    pub(crate) fn key(&mut self, key: Key) -> Option<Action> {
        if self.is_typing {
            self.typed(key);
            return None;
        }
        self.message = None;
        if self.shows_help {
            self.shows_help = self.help.key(key);
            return None;
        }
        match key {
            Key::Char('q') => return Some(Action::Quit),
            Key::Char('?' | 'h') => (self.shows_help, self.help) = (true, List::new(HELP.len(), 0)),
            Key::Char('/') => {
                self.open(View::Functions);
                self.is_typing = true;
            }
            Key::Char('n') => self.has_full_names = !self.has_full_names,
            Key::Char(digit @ '1'..='6') => {
                let (view, _) = VIEWS[digit as usize - '1' as usize];
                return self.open(view);
            }
            Key::Tab | Key::BackTab => {
                let at = VIEWS.iter().position(|(view, _)| *view == self.view).unwrap_or(0);
                let step = if key == Key::Tab { 1 } else { VIEWS.len() - 1 };
                return self.open(VIEWS[(at + step) % VIEWS.len()].0);
            }
            key => return self.key_of_view(key),
        }
        None
    }

    fn key_of_view(&mut self, key: Key) -> Option<Action> {
        match self.view {
            View::Functions => self.key_of_functions(key),
            View::Graph => self.key_of_graph(key),
            View::Flame => self.key_of_flame(key),
            View::Source => {
                let Code { list, left, .. } = &mut self.source;
                match scrolled(list, key, left) {
                    true => None,
                    false => self.back(key),
                }
            }
            View::Assembly => {
                let Code { list, left, .. } = &mut self.assembly;
                match scrolled(list, key, left) {
                    true => None,
                    false => self.back(key),
                }
            }
            View::Programs => match key {
                Key::Enter | Key::Right => self.choose(),
                key if self.programs.key(key) => None,
                key => self.back(key),
            },
        }
    }

    fn key_of_functions(&mut self, key: Key) -> Option<Action> {
        match key {
            Key::Enter | Key::Right => return self.open(View::Graph),
            Key::Char('s') => self.functions.next_sort(&self.data),
            Key::Char('r') => self.functions.reverse(&self.data),
            Key::Escape | Key::Backspace => self.functions.search(&self.data, String::clear),
            key => {
                self.functions.list.key(key);
            }
        }
        None
    }

    fn key_of_graph(&mut self, key: Key) -> Option<Action> {
        match key {
            Key::Enter | Key::Right => {
                let chosen = self.graph.chosen();
                if chosen == self.graph.function {
                    return self.open(View::Source);
                }
                match chosen {
                    Some(next) => self.walk(next),
                    None => self.message = Some("the caller is not known: it was not hooked".to_owned()),
                }
            }
            Key::Backspace | Key::Left => match self.walked.pop() {
                Some((function, row)) => {
                    self.graph = Graph::of(&self.data, function);
                    self.graph.list.select(row);
                    self.function = Some(function);
                }
                None => return self.open(View::Functions),
            },
            key if self.graph.list.key(key) => {}
            key => return self.back(key),
        }
        None
    }

    fn key_of_flame(&mut self, key: Key) -> Option<Action> {
        let Some(flame) = &mut self.flame else { return self.back(key) };
        match key {
            Key::Up | Key::Char('k') => flame.up(),
            Key::Down | Key::Char('j') => {
                flame.down();
            }
            Key::Left | Key::Right => flame.aside(key == Key::Right),
            Key::PageUp | Key::PageDown => flame.page(key == Key::PageDown),
            Key::Home => flame.home(),
            Key::Enter => flame.zoom_in(),
            Key::Backspace if flame.zoom_out() => {}
            key => return self.back(key),
        }
        None
    }

    /// Goes back to the list of functions, if that is what a key means that means nothing else.
    fn back(&mut self, key: Key) -> Option<Action> {
        match key {
            Key::Escape | Key::Backspace => self.open(View::Functions),
            _ => None,
        }
    }

    /// Shows the graph of another function.
    fn walk(&mut self, next: u32) {
        /// Nobody goes back further.
        const MOST: usize = 10_000;
        if let Some(function) = self.graph.function {
            if self.walked.len() >= MOST {
                self.walked.remove(0);
            }
            self.walked.push((function, self.graph.list.selected));
        }
        self.graph = Graph::of(&self.data, next);
        self.function = Some(next);
    }

    /// Opens a view. That of a function is of the one that is selected in the view before.
    fn open(&mut self, view: View) -> Option<Action> {
        let selected = match self.view {
            View::Functions => self.functions.chosen(),
            View::Graph => self.graph.chosen(),
            View::Flame => self.flame.as_ref().and_then(Flame::chosen).and_then(|bar| match bar.frame.of {
                Of::Function(function) => Some(function),
                Of::All | Of::Rest => None,
            }),
            View::Source | View::Assembly | View::Programs => None,
        };
        if self.view != view {
            self.function = selected.or(self.function).or_else(|| self.functions.chosen());
        }
        let before = std::mem::replace(&mut self.view, view);
        match (view, self.function) {
            (View::Graph, Some(function)) if self.graph.function != Some(function) => {
                // From the list, a walk begins anew.
                if before == View::Functions {
                    self.walked.clear();
                    self.graph = Graph::default();
                }
                self.walk(function);
            }
            (View::Flame, _) if self.flame.is_none() => {
                self.flame = Some(Flame::new(Paths::new(&self.data.run)));
            }
            (View::Source | View::Assembly, Some(function)) => return self.read(view, function),
            _ => {}
        }
        None
    }

    /// Asks for the source or the instructions of a function.
    fn read(&mut self, view: View, function: u32) -> Option<Action> {
        let Some(symbol) = self.data.symbol(function) else {
            let name = self.data.name(function, false);
            self.message = Some(format!("the module of {name} is not known"));
            match view {
                View::Source => self.source = Code::default(),
                _ => self.assembly = Code::default(),
            }
            return None;
        };
        let (is_new, request) = match view {
            View::Source => (self.source.show(&symbol), Request::Source(symbol)),
            _ => (self.assembly.show(&symbol), Request::Assembly(symbol)),
        };
        is_new.then_some(Action::Ask(request))
    }

    /// Shows the selected program or thread alone.
    fn choose(&mut self) -> Option<Action> {
        let chosen = self.choices.get(self.programs.selected)?.chosen;
        if self.choices.len() <= 2 {
            self.message = Some("the run has one program, and its threads were not told apart".to_owned());
            return None;
        }
        self.awaited = Some(chosen);
        Some(Action::Ask(Request::Choose(chosen)))
    }

    /// Handles a key while a text to search for is typed.
    fn typed(&mut self, key: Key) {
        /// The greatest length of the text in bytes.
        const MOST: usize = 1000;
        match key {
            Key::Enter | Key::Tab => self.is_typing = false,
            Key::Escape => {
                self.is_typing = false;
                self.functions.search(&self.data, String::clear);
            }
            Key::Backspace => self.functions.search(&self.data, |text| {
                text.pop();
            }),
            Key::Char(c) if self.functions.filter.len() < MOST => {
                self.functions.search(&self.data, |text| text.push(c));
            }
            Key::Char(_) => {}
            key => {
                self.functions.list.key(key);
            }
        }
    }
}

/// Returns what was read before what was found out of it.
fn order<T>((rows, start, read): (usize, usize, T)) -> (T, usize, usize) {
    (read, rows, start)
}

/// Handles a key of a list that can be scrolled to the side. Returns whether it is one.
fn scrolled(list: &mut List, key: Key, left: &mut usize) -> bool {
    const STEP: usize = 8;
    const MOST: usize = 10_000;
    match key {
        Key::Right => *left = (*left + STEP).min(MOST),
        Key::Left => *left = left.saturating_sub(STEP),
        key => return list.key(key),
    }
    true
}
