//! What is known of the control flow of a program.

use crate::flow::branch::Branch;
use crate::flow::head::Head;
use crate::flow::registers::facts::Registers;

#[derive(Clone, Copy, Debug, Default)]
pub struct FunctionFlow {
    pub undecodable: bool,
    /// Has an own way with its return slot: reads it (`__builtin_return_address(0)`), or takes its
    /// arguments off the stack when it returns, or jumps to a function that does.
    pub odd_return: bool,
    /// A bit for each frame above its own whose return address it reads: see [`return_slot::Uses::callers`].
    pub(crate) reads_callers: u8,
    /// A jump table or label table leads back to its first instruction.
    pub table_loops: bool,
    /// It calls nothing, makes no system call, and ends with its own return: control is nowhere else between
    /// its entry and its exit.
    pub leaf: bool,
    /// Its last instruction is neither a jump, a return nor a call: control runs on into the next function.
    pub runs_on: bool,
    /// It calls itself directly.
    pub recursive: bool,
    pub registers: Registers,
    pub head: Head,
}

#[derive(Debug, Default)]
pub struct Flow {
    /// Sorted by target, then by site. Branches inside a function only when they lead to its first
    /// [`NEAR`] bytes.
    pub(crate) branches: Vec<Branch>,
    /// For each function of the image, the first branch that leads to its start or behind.
    pub(crate) first: Vec<usize>,
    /// One for each function of the image.
    pub functions: Vec<FunctionFlow>,
    /// Sorted: addresses in code that instructions compute (`lea`, immediates) or read, or data holds.
    pub taken: Vec<u64>,
    /// Sorted: targets of indirect branches near the start of the function they lie in.
    pub indirect: Vec<u64>,
    /// Starts of functions to which code that was not decoded seems to branch.
    pub(crate) entered_unseen: Vec<u64>,
}

impl Flow {
    /// Branches with targets in `lo..hi`, sorted by target.
    pub fn branches_to(&self, lo: u64, hi: u64) -> &[Branch] {
        let from = self.branches.partition_point(|b| b.target < lo);
        let len = self.branches[from..].partition_point(|b| b.target < hi);
        &self.branches[from..from + len]
    }

    /// The same for targets from the start of function `index` on, without a search.
    pub fn branches_into(&self, index: usize, hi: u64) -> &[Branch] {
        let from = &self.branches[self.first[index]..];
        &from[..from.iter().take_while(|b| b.target < hi).count()]
    }

    /// All branches, sorted by target.
    pub(crate) fn branches(&self) -> &[Branch] {
        &self.branches
    }

    pub fn is_taken(&self, address: u64) -> bool {
        self.taken.binary_search(&address).is_ok()
    }

    /// Whether an instruction computes or reads an address in `lo..hi`.
    pub fn is_taken_in(&self, lo: u64, hi: u64) -> bool {
        self.taken.get(self.taken.partition_point(|&t| t < lo)).is_some_and(|&t| t < hi)
    }

    /// Indirect targets in `lo..hi`.
    pub fn indirect_in(&self, lo: u64, hi: u64) -> &[u64] {
        let from = self.indirect.partition_point(|&t| t < lo);
        let len = self.indirect[from..].partition_point(|&t| t < hi);
        &self.indirect[from..from + len]
    }
}
