//! Why a function's basic blocks are not counted.

use std::{error, fmt};

/// Why a function's basic blocks are not counted. If the function is hooked, its calls are counted even
/// so. The text for each reason is its [`Display`](fmt::Display).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Uncounted {
    /// The user does not want them counted.
    NotSelected,
    /// The function is not hooked, so nothing would lead to a copy.
    NotHooked,
    /// Some of its bytes are not instructions.
    NotDecodable,
    /// It reads data among its instructions.
    DataInCode,
    /// Something branches into the middle of an instruction.
    Overlapping,
    /// An instruction cannot run elsewhere.
    NotRelocatable,
    /// It uses the gs register, as counters do.
    UsesGs,
    /// It jumps to a computed address, and the possible targets are not known.
    UnknownJump,
    /// A function of a library into which code branches that is not hooked.
    JumpedInto,
    /// A target of jumps has no room for a jump to the copy.
    NoRoom,
    /// Its frame description or exception table cannot be copied.
    Frames,
    /// It makes a system call that leads to the agent.
    SystemCall,
}

impl Uncounted {
    /// Returns the reason's short name, as lists use it.
    pub fn name(self) -> &'static str {
        match self {
            Uncounted::NotSelected => "not-selected",
            Uncounted::NotHooked => "not-hooked",
            Uncounted::NotDecodable => "not-decodable",
            Uncounted::DataInCode => "data-in-code",
            Uncounted::Overlapping => "overlapping",
            Uncounted::NotRelocatable => "not-relocatable",
            Uncounted::UsesGs => "uses-gs",
            Uncounted::UnknownJump => "unknown-jump",
            Uncounted::JumpedInto => "jumped-into",
            Uncounted::NoRoom => "no-room",
            Uncounted::Frames => "frames",
            Uncounted::SystemCall => "system-call",
        }
    }
}

impl fmt::Display for Uncounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Uncounted::NotSelected => "not to be counted",
            Uncounted::NotHooked => "it is not hooked, so nothing leads to a copy of it",
            Uncounted::NotDecodable => "some of its bytes are no instructions",
            Uncounted::DataInCode => "it reads data among its instructions",
            Uncounted::Overlapping => "something branches into the middle of an instruction",
            Uncounted::NotRelocatable => "an instruction cannot be moved",
            Uncounted::UsesGs => "it uses the gs register, as counters do",
            Uncounted::UnknownJump => {
                "it jumps to an address that it computes, and where that may lead is not known"
            }
            Uncounted::JumpedInto => "code that is not hooked branches into it",
            Uncounted::NoRoom => "a place that is jumped to has no room for a jump to the copy",
            Uncounted::Frames => "its frame description or exception table cannot be moved",
            Uncounted::SystemCall => "it makes a system call that gprofinject makes in its place",
        })
    }
}

impl error::Error for Uncounted {}
