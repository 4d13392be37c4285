//! The screen: the names of the views, what was run, one view, and a line of hints.

pub(crate) mod assembly;
pub(crate) mod flame;
pub(crate) mod functions;
pub(crate) mod graph;
pub(crate) mod head;
pub(crate) mod help;
pub(crate) mod pen;
pub(crate) mod programs;
pub(crate) mod source;
pub(crate) mod theme;
pub(crate) mod whole;
