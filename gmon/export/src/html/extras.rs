//! What a report contains besides its run: source lines, instructions, the shares of programs, and a time line.

use std::collections::BTreeMap;

use crate::html::timeline::Timeline;
use crate::model::{Line, ProgramFunction};

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
    /// What each function has done in each program, as [`by_program`](crate::load::by_program) returns it.
    pub programs: Vec<ProgramFunction>,
    /// The calls of a trace.
    pub timeline: Option<Timeline>,
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
    /// The CPU time of the samples at the instruction, in nanoseconds.
    pub self_ns: u64,
    /// The calls that the instruction has made; `None` if none were counted.
    pub calls: Option<u64>,
    pub text: String,
    pub line: Option<Line>,
}
