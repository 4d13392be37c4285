//! What a report contains besides its run: source lines and instructions.

use std::collections::BTreeMap;

use crate::model::Line;

/// The most instructions that a report contains.
pub(crate) const MAX_INSTRUCTIONS: usize = 300_000;

/// The lines of a source file by their numbers.
pub type SourceLines = BTreeMap<u32, String>;

/// Returns the lines of the source file with a path, or `None` if it is not found.
pub type SourceReader<'a> = dyn FnMut(&str) -> Option<SourceLines> + 'a;

/// What a report contains besides its run.
#[derive(Default)]
pub struct Extras<'a> {
    /// Where the source lines come from. Without it, the report has their numbers only.
    pub source: Option<&'a mut SourceReader<'a>>,
    /// The instructions of functions, as [`listings`](crate::html::listings()) returns them.
    pub listings: Vec<Listing>,
}

/// The instructions of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The index of the function in [`Run::functions`](crate::Run::functions).
    pub function: u32,
    pub instructions: Vec<Instruction>,
}

/// An instruction with its count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// The link address.
    pub address: u64,
    /// How often it was executed; `None` if that was not counted.
    pub count: Option<u64>,
    pub text: String,
    pub line: Option<Line>,
}
