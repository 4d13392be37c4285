//! The list of functions: order and search.

use crate::browse::data::{Data, Sort};
use crate::browse::list::List;

/// The list of functions.
pub(crate) struct Functions {
    /// The indexes of the functions, in the order in which they are shown.
    pub(crate) rows: Vec<u32>,
    pub(crate) list: List,
    pub(crate) sort: Sort,
    pub(crate) is_reversed: bool,
    /// The text that names must contain.
    pub(crate) filter: String,
}

impl Functions {
    pub(crate) fn new(data: &Data) -> Functions {
        let sort = data.sorts().first().copied().unwrap_or(Sort::Calls);
        let mut functions = Functions {
            rows: Vec::new(),
            list: List::default(),
            sort,
            is_reversed: false,
            filter: String::new(),
        };
        functions.arrange(data, None);
        functions
    }

    /// Makes the rows anew. The function `selected` stays selected if it is still among them.
    pub(crate) fn arrange(&mut self, data: &Data, selected: Option<u32>) {
        self.rows = data.rows(&self.filter, self.sort, self.is_reversed);
        let found = selected.and_then(|wanted| self.rows.iter().position(|&row| row == wanted));
        self.list = List::new(self.rows.len(), found.unwrap_or(0));
    }

    /// Returns the selected function.
    pub(crate) fn chosen(&self) -> Option<u32> {
        self.rows.get(self.list.selected).copied()
    }

    /// Goes on to the next order that the run has numbers for.
    pub(crate) fn next_sort(&mut self, data: &Data) {
        let sorts = data.sorts();
        let at = sorts.iter().position(|&sort| sort == self.sort).map_or(0, |at| at + 1);
        self.sort = sorts[at % sorts.len().max(1)];
        self.is_reversed = false;
        self.arrange(data, None);
    }

    /// Turns the order round.
    pub(crate) fn reverse(&mut self, data: &Data) {
        self.is_reversed = !self.is_reversed;
        self.arrange(data, None);
    }

    /// Changes the text that names must contain.
    pub(crate) fn search(&mut self, data: &Data, change: impl FnOnce(&mut String)) {
        let selected = self.chosen();
        change(&mut self.filter);
        self.arrange(data, selected);
    }
}
