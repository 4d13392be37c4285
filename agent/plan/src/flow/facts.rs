//! The control flow of a program, and lookups in it.

use crate::flow::branch::Branch;
use crate::flow::head::Head;
use crate::flow::registers::facts::Registers;

/// What is known of one function.
#[derive(Clone, Copy, Debug, Default)]
pub struct FunctionFlow {
    /// Whether some of the function's bytes are not instructions.
    pub undecodable: bool,
    /// Whether the last instruction reaches beyond the function's end. The function is then undecodable as well.
    pub(crate) straddles: bool,
    /// Whether the code contradicts that a function begins there: see `flow::starts`.
    pub(crate) contradicted: bool,
    /// Whether the function uses its return address for anything but a return: it reads the address
    /// (`__builtin_return_address(0)`), removes its arguments from the stack when it returns, or jumps to
    /// a function that does one of these.
    pub odd_return: bool,
    /// Whether the function computes its return address anew in its slot, so that it returns to another place than behind its
    /// call.
    pub(crate) shifts_return: bool,
    /// A bit for each frame above the function's own whose return address it reads: see `Uses::callers` in
    /// `flow::return_slot`.
    pub(crate) reads_callers: u8,
    /// Whether an indirect jump of the function may lead to its first instruction without being a tail call: the jump of a
    /// `switch`, or a `goto`.
    pub table_loops: bool,
    /// Whether it has [`FunctionFlow::table_loops`], and a tail call of it by itself is the same jump.
    pub calls_itself_too: bool,
    /// Whether the function is a leaf: it makes no call and no system call, and ends with its own return.
    /// Between its entry and its exit, control stays in it.
    pub leaf: bool,
    /// The same as [`FunctionFlow::leaf`], except that the function may make direct calls, of other functions or of itself
    /// at its first instruction, may jump through the table of a `switch`, and may end with direct jumps out of it.
    pub leaves_directly: bool,
    /// Whether the last instruction is neither a jump, a return nor a call, so that control runs on into
    /// the next function.
    pub runs_on: bool,
    /// Whether the last instruction is a call. Compilers emit such a call where the callee never returns;
    /// if the callee does return, control runs on into the next function.
    pub ends_in_call: bool,
    /// Whether the function calls itself directly.
    pub recursive: bool,
    /// The function's use of rax, r10 and r11.
    pub registers: Registers,
    /// The instructions that a jump at its start would overwrite.
    pub head: Head,
}

/// The control flow of a program. Addresses are link addresses.
#[derive(Debug, Default)]
pub struct Flow {
    /// All direct branches, sorted by target, then by site. Of the branches inside one function, the list
    /// has only those that lead to the function's first `NEAR` bytes.
    pub(crate) branches: Vec<Branch>,
    /// For each function of the image, the index in `branches` of the first branch whose target is the
    /// function's start or a higher address.
    pub(crate) first: Vec<usize>,
    /// The facts about each function of the image, in the image's order.
    pub functions: Vec<FunctionFlow>,
    /// Addresses in code that instructions compute (`lea`, immediate operands) or read, or that data holds;
    /// sorted.
    pub taken: Vec<u64>,
    /// Those of them that nothing in the file computes, reads or holds, and that are there because they are exported; sorted.
    pub(crate) only_exported: Vec<u64>,
    /// Targets of indirect branches that lie near the start of a function; sorted.
    pub indirect: Vec<u64>,
    /// Starts of functions to which code that belongs to no function seems to branch.
    pub(crate) entered_unseen: Vec<u64>,
    /// The calls of functions that such code seems to make: the function's start, and the address after the call.
    pub(crate) called_unseen: Vec<(u64, u64)>,
    /// The address of an instruction of a function that reads or sets the base of gs, or accesses memory by it; `None` if there is none.
    pub(crate) uses_gs: Option<u64>,
    /// Where calls lead whose callers then read r10 or r11 before they write it, and the register.
    pub(crate) results: Vec<(u64, u8)>,
}

impl Flow {
    /// Returns the branches with targets in `lo..hi`, sorted by target.
    pub fn branches_to(&self, lo: u64, hi: u64) -> &[Branch] {
        let from = self.branches.partition_point(|b| b.target < lo);
        let len = self.branches[from..].partition_point(|b| b.target < hi);
        &self.branches[from..from + len]
    }

    /// Returns the branches with targets from the start of function `index` up to `hi`, sorted by target.
    /// This lookup needs no search.
    pub fn branches_into(&self, index: usize, hi: u64) -> &[Branch] {
        let from = &self.branches[self.first[index]..];
        &from[..from.iter().take_while(|b| b.target < hi).count()]
    }

    /// Returns all branches, sorted by target.
    pub(crate) fn branches(&self) -> &[Branch] {
        &self.branches
    }

    /// Returns whether an instruction computes or reads the address, or data contains it.
    pub fn is_taken(&self, address: u64) -> bool {
        self.taken.binary_search(&address).is_ok()
    }

    /// Returns whether an instruction computes or reads an address in `lo..hi`, or data contains one.
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
