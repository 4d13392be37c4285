//! What is known of the control flow of a program, and lookups in it.

use crate::flow::branch::Branch;
use crate::flow::head::Head;
use crate::flow::registers::facts::Registers;

/// What is known of one function.
#[derive(Clone, Copy, Debug, Default)]
pub struct FunctionFlow {
    /// Some of its bytes are no instruction.
    pub undecodable: bool,
    /// It uses its return address otherwise than to return: it reads it (`__builtin_return_address(0)`), or
    /// takes its arguments off the stack when it returns, or jumps to a function that does one of these.
    pub odd_return: bool,
    /// A bit for each frame above its own whose return address it reads: see `Uses::callers` in
    /// `flow::return_slot`.
    pub(crate) reads_callers: u8,
    /// A jump table or label table leads back to its first instruction.
    pub table_loops: bool,
    /// It calls nothing, makes no system call, and ends with its own return: between its entry and its exit,
    /// control stays in it.
    pub leaf: bool,
    /// Its last instruction is neither a jump, a return nor a call, so control runs on into the next
    /// function.
    pub runs_on: bool,
    /// Its last instruction is a call. Compilers write this where the callee never returns; if the callee does
    /// return, control runs on.
    pub ends_in_call: bool,
    /// It calls itself directly.
    pub recursive: bool,
    /// What it does with rax, r10 and r11.
    pub registers: Registers,
    /// The instructions that a jump at its start would overwrite.
    pub head: Head,
}

/// The control flow of a program. Addresses are link addresses.
#[derive(Debug, Default)]
pub struct Flow {
    /// All direct branches, sorted by target, then by site. A branch inside a function is among them only if
    /// it leads to the function's first `NEAR` bytes.
    pub(crate) branches: Vec<Branch>,
    /// For each function of the image, the index in `branches` of the first branch that leads to its start or
    /// behind.
    pub(crate) first: Vec<usize>,
    /// What is known of each function of the image, in the image's order.
    pub functions: Vec<FunctionFlow>,
    /// Addresses in code that instructions compute (`lea`, immediate operands) or read, or that data holds;
    /// sorted.
    pub taken: Vec<u64>,
    /// Targets of indirect branches near the start of the function that they lie in; sorted.
    pub indirect: Vec<u64>,
    /// Starts of functions to which code that belongs to no function seems to branch.
    pub(crate) entered_unseen: Vec<u64>,
}

impl Flow {
    /// Returns the branches with targets in `lo..hi`, sorted by target.
    pub fn branches_to(&self, lo: u64, hi: u64) -> &[Branch] {
        let from = self.branches.partition_point(|b| b.target < lo);
        let len = self.branches[from..].partition_point(|b| b.target < hi);
        &self.branches[from..from + len]
    }

    /// Returns the branches with targets from the start of function `index` up to `hi`, sorted by target. It
    /// needs no search.
    pub fn branches_into(&self, index: usize, hi: u64) -> &[Branch] {
        let from = &self.branches[self.first[index]..];
        &from[..from.iter().take_while(|b| b.target < hi).count()]
    }

    /// Returns all branches, sorted by target.
    pub(crate) fn branches(&self) -> &[Branch] {
        &self.branches
    }

    /// Returns whether an instruction computes or reads the address, or data holds it.
    pub fn is_taken(&self, address: u64) -> bool {
        self.taken.binary_search(&address).is_ok()
    }

    /// Returns whether an instruction computes or reads an address in `lo..hi`, or data holds one.
    pub fn is_taken_in(&self, lo: u64, hi: u64) -> bool {
        self.taken.get(self.taken.partition_point(|&t| t < lo)).is_some_and(|&t| t < hi)
    }

    /// Returns the targets of indirect branches in `lo..hi`.
    pub fn indirect_in(&self, lo: u64, hi: u64) -> &[u64] {
        let from = self.indirect.partition_point(|&t| t < lo);
        let len = self.indirect[from..].partition_point(|&t| t < hi);
        &self.indirect[from..from + len]
    }
}
