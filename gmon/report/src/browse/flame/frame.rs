//! What a frame of a flame graph is.

use gmon_export::{Run, Time};

/// What a frame stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Of {
    /// Everything.
    All,
    /// The function with this index.
    Function(u32),
    /// Calls for which there was no room for nodes of their own, or callers of sampled stacks that are not known.
    Rest,
}

/// A frame below another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Frame {
    pub(crate) of: Of,
    /// The index of the node in the tree of paths.
    pub(crate) node: u32,
    /// What it has cost with all above it.
    pub(crate) weight: f64,
    /// What it has cost itself.
    pub(crate) own: f64,
}

/// What weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Nanoseconds,
    /// Instructions, in place of times.
    Executed,
    Samples,
    /// Those of the basic blocks that were counted.
    Instructions,
    Calls,
}

impl Unit {
    /// Returns the unit of a run's times.
    pub(crate) fn of_times(run: &Run) -> Unit {
        if run.time == Time::Executed { Unit::Executed } else { Unit::Nanoseconds }
    }

    /// Returns the most telling unit that a run has.
    pub(crate) fn of(run: &Run) -> Unit {
        match (run.time.is_some() && run.self_ns() > 0, run.has_instructions) {
            (true, _) => Unit::of_times(run),
            (false, true) => Unit::Instructions,
            (false, false) => Unit::Calls,
        }
    }
}
