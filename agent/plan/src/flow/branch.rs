//! Direct branches.

/// Branches inside a function are of interest only where they lead near its start: no tactic overwrites
/// or relocates more than this many bytes.
pub(crate) const NEAR: u64 = 96;

/// A direct call, jump or conditional jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Branch {
    pub target: u64,
    /// Address of the branch instruction.
    pub site: u64,
    /// Index of the function that contains the site.
    pub function: u32,
    /// Bytes of the instruction.
    pub len: u8,
    /// Bytes of its displacement, the instruction's last ones: 1 or 4.
    pub width: u8,
    pub kind: BranchKind,
    /// r10 may be as it was when the function was entered.
    pub passes_r10: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BranchKind {
    Call,
    /// Unconditional.
    Jump,
    /// jcc, loop, jrcxz, xbegin.
    Conditional,
}

impl Branch {
    /// Address after the instruction: for a call, the return address.
    pub fn end(&self) -> u64 {
        self.site + u64::from(self.len)
    }
}
