//! A list of lines or instructions that the worker reads when it is first shown for a function.

use crate::browse::data::Symbol;
use crate::browse::list::List;

/// What was read of a function, of which the rows are a list.
pub(crate) struct Code<T> {
    pub(crate) state: State<T>,
    pub(crate) list: List,
    /// The number of columns that have been scrolled away at the left.
    pub(crate) left: usize,
}

/// How far reading is.
pub(crate) enum State<T> {
    /// No function was chosen.
    Nothing,
    Waiting(Symbol),
    Read(Symbol, T),
    Failed(Symbol, String),
}

impl<T> State<T> {
    /// Returns what was read.
    ///
    /// # Errors
    /// It is not there. The text says why, which is `waiting` while it is read.
    pub(crate) fn read<'s>(&'s self, waiting: &'s str) -> Result<&'s T, &'s str> {
        match self {
            State::Read(_, read) => Ok(read),
            State::Waiting(_) => Err(waiting),
            State::Failed(_, error) => Err(error),
            State::Nothing => Err("no function is chosen"),
        }
    }
}

impl<T> Default for Code<T> {
    fn default() -> Code<T> {
        Code { state: State::Nothing, list: List::default(), left: 0 }
    }
}

impl<T> Code<T> {
    /// Returns the function that is shown or waited for.
    pub(crate) fn symbol(&self) -> Option<&Symbol> {
        match &self.state {
            State::Nothing => None,
            State::Waiting(symbol) | State::Read(symbol, _) | State::Failed(symbol, _) => Some(symbol),
        }
    }

    /// Takes what was read, if it is what is waited for. `start` is the row to begin with.
    pub(crate) fn take(&mut self, symbol: Symbol, read: Result<(T, usize, usize), String>) {
        if self.symbol() != Some(&symbol) {
            return;
        }
        match read {
            Ok((read, rows, start)) => {
                self.list = List::new(rows, start);
                self.state = State::Read(symbol, read);
            }
            Err(error) => self.state = State::Failed(symbol, error),
        }
    }

    /// Shows another function. Returns whether it has to be read.
    pub(crate) fn show(&mut self, symbol: &Symbol) -> bool {
        if self.symbol() == Some(symbol) {
            return false;
        }
        *self = Code { state: State::Waiting(symbol.clone()), ..Code::default() };
        true
    }
}
