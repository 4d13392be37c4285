//! The Python functions that a thread executes.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::python::functions::Function;

/// A function that a thread executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Executed {
    pub(crate) function: Arc<Function>,
    /// The line that it executes, or on which it has called the next one, if that is known.
    pub(crate) line: Option<NonZeroU32>,
}

/// The functions of a thread, the innermost one first, in runs of those that one native call of the interpreter executes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frames {
    functions: Box<[Executed]>,
    /// Where each run is: see [`Run::place`]; and the number of functions up to its end.
    runs: Box<[(u64, u32)]>,
    /// What tells the outermost run from others that the thread has had: an address of which it has only one.
    pub(crate) outermost: u64,
    /// Whether the outermost function is among them.
    pub(crate) is_whole: bool,
}

/// The functions that one native call of the interpreter executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run<'f> {
    /// An address within the native frame of the call, or 0 if that is not known: then each native call of the interpreter has one run.
    pub(crate) place: u64,
    /// The innermost one first.
    pub(crate) functions: &'f [Executed],
}

impl Frames {
    /// Makes them of functions and of the place and the end of each run.
    pub(crate) fn new(
        functions: Vec<Executed>,
        runs: Vec<(u64, u32)>,
        outermost: u64,
        is_whole: bool,
    ) -> Frames {
        Frames { functions: functions.into(), runs: runs.into(), outermost, is_whole }
    }

    /// Returns the runs, the innermost one first.
    pub(crate) fn runs(&self) -> impl DoubleEndedIterator<Item = Run<'_>> + ExactSizeIterator {
        (0..self.runs.len()).map(|index| {
            let start = index.checked_sub(1).and_then(|before| self.runs.get(before)).map_or(0, |run| run.1);
            let (place, end) = self.runs.get(index).copied().unwrap_or_default();
            let functions = self.functions.get(start as usize..end as usize).unwrap_or_default();
            Run { place, functions }
        })
    }

    /// The number of bytes that these occupy.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.functions) + size_of_val(&*self.runs)
    }
}
