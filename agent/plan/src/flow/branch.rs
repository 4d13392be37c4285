//! The direct branches of a program.

/// Distance from a function's start within which branches inside the function are of interest, in bytes: no
/// tactic overwrites or relocates more.
pub(crate) const NEAR: u64 = 96;

/// A direct call, jump or conditional jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Branch {
    /// Address that it leads to.
    pub target: u64,
    /// Address of the branch instruction.
    pub site: u64,
    /// Index in the image of the function that contains the site.
    pub function: u32,
    /// Length of the instruction, in bytes.
    pub len: u8,
    /// Size of the displacement in bytes, 1 or 4. The displacement is at the instruction's end.
    pub width: u8,
    /// Whether it is a call, a jump or a conditional jump.
    pub kind: BranchKind,
    /// Whether r10 may still hold the value that it had when the function was entered.
    pub passes_r10: bool,
}

/// The kinds of direct branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BranchKind {
    /// `call`, which pushes a return address.
    Call,
    /// `jmp`.
    Jump,
    /// `jcc`, `loop`, `jrcxz`, `xbegin`: control may also continue with the next instruction.
    Conditional,
}

impl Branch {
    /// Returns the address after the instruction, which for a call is the return address.
    pub fn end(&self) -> u64 {
        self.site + u64::from(self.len)
    }
}
