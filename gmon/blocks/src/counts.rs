//! The counts of a function, of a basic block and of an instruction, and sums of them.

use gmon::Function;
use iced_x86::Instruction;

/// A function's counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionCounts {
    pub symbol: Function,
    /// The number of its calls by the profile's arcs, or by the count of its first basic block if the profile
    /// has no arcs, or none of functions that gprof does not show ([`Hidden`](gmon::Hidden)).
    pub calls: u64,
    /// Its basic blocks; `None` if it was not counted, that is, if it has no record.
    pub blocks: Option<Vec<BlockCounts>>,
    /// The index of the function of which this is a `.cold` part.
    pub part_of: Option<usize>,
}

/// A basic block: instructions that run one after the other, up to a branch or a call, or to the target of a
/// branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCounts {
    pub start: u64,
    /// The address after its last instruction.
    pub end: u64,
    /// The number of executions.
    pub count: u64,
    pub instructions: u64,
}

/// An instruction's count.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub instruction: Instruction,
    /// The number of executions; `None` if it was not counted, such as padding.
    pub count: Option<u64>,
    /// Whether a record begins here.
    pub(crate) starts: bool,
}

impl Step {
    /// Returns an instruction that was not counted.
    pub fn uncounted(instruction: Instruction) -> Step {
        Step { instruction, count: None, starts: false }
    }
}

/// The columns of the reports by function and file, in the terms of Weinberger's and Bishop's listings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Instructions executed.
    pub ie: u64,
    /// Calls.
    pub calls: u64,
    /// Instructions.
    pub i: u64,
    /// Instructions never executed.
    pub ine: u64,
    /// Basic blocks executed.
    pub bbe: u64,
    /// Basic blocks.
    pub bb: u64,
    /// Basic blocks never executed.
    pub bbne: u64,
}

impl Sums {
    /// Adds a basic block.
    pub(crate) fn add_block(&mut self, count: u64) {
        self.bb += 1;
        self.bbe = self.bbe.saturating_add(count);
        self.bbne += u64::from(count == 0);
    }

    /// Adds instructions that ran `count` times.
    pub(crate) fn add_instructions(&mut self, count: u64, instructions: u64) {
        self.i += instructions;
        self.ie = self.ie.saturating_add(count.saturating_mul(instructions));
        self.ine += if count == 0 { instructions } else { 0 };
    }

    /// Adds other sums.
    pub fn add(&mut self, other: &Sums) {
        self.ie = self.ie.saturating_add(other.ie);
        self.calls = self.calls.saturating_add(other.calls);
        self.bbe = self.bbe.saturating_add(other.bbe);
        self.i += other.i;
        self.ine += other.ine;
        self.bb += other.bb;
        self.bbne += other.bbne;
    }
}
