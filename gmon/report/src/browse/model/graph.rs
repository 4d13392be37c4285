//! A function between its callers and callees.

use gmon_export::Arc;

use crate::browse::data::Data;
use crate::browse::list::List;

/// A row of the view.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Row {
    Caller(Arc),
    /// The function itself.
    Own,
    Callee(Arc),
}

/// A function between its callers and callees.
#[derive(Default)]
pub(crate) struct Graph {
    pub(crate) function: Option<u32>,
    pub(crate) rows: Vec<Row>,
    pub(crate) list: List,
}

impl Graph {
    /// Returns the view of a function.
    pub(crate) fn of(data: &Data, function: u32) -> Graph {
        let callers = data.callers(function).into_iter().cloned().map(Row::Caller);
        let callees = data.callees(function).into_iter().cloned().map(Row::Callee);
        let rows: Vec<Row> = callers.chain([Row::Own]).chain(callees).collect();
        let own = rows.iter().position(|row| *row == Row::Own).unwrap_or(0);
        Graph { function: Some(function), list: List::new(rows.len(), own), rows }
    }

    /// Returns the function of the selected row.
    pub(crate) fn chosen(&self) -> Option<u32> {
        match self.rows.get(self.list.selected)? {
            Row::Caller(arc) => arc.caller,
            Row::Own => self.function,
            Row::Callee(arc) => Some(arc.callee),
        }
    }
}
