//! What can be decided of a function, and the words for it.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Tactic {
    /// `jmp rel32` over the first instructions, which are relocated.
    Jump,
    /// The same; it reaches into the padding behind a short function.
    JumpIntoPadding,
    /// The same; the relocated instructions end with a call, whose return address stays the original one.
    JumpOverCall,
    /// `jmp rel8` to a cave that holds the `jmp rel32`.
    ShortJump,
    /// Nothing fits into the function: every call and jump to it is led to the thunk instead. Only where
    /// nobody takes its address.
    CallSites,
    /// `push rsp`, then on into the patch of the function behind it, which tells from the stack who was
    /// called.
    Sled,
    /// Frida's gum overwrites the first sixteen bytes or more.
    Frida,
}

impl Tactic {
    pub fn name(self) -> &'static str {
        match self {
            Tactic::Jump => "jump",
            Tactic::JumpIntoPadding => "jump-into-padding",
            Tactic::JumpOverCall => "jump-over-call",
            Tactic::ShortJump => "short-jump",
            Tactic::CallSites => "call-sites",
            Tactic::Sled => "sled",
            Tactic::Frida => "frida",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reason {
    ColdPart,
    EntryPoint,
    NotSelected,
    NoHooks,
    NoCode,
    NotDecodable,
    TextRelocation,
    NoRoom,
    JumpedInto,
    /// See [`crate::flow::falls`].
    RunInto,
    LoopsThroughTable,
    NotRelocatable,
    Overlap,
    Go,
    OwnText,
    Unwinder,
    FridaRoom,
    FridaCall,
    FridaEntered,
    FridaLoop,
    FridaJump,
    FridaEarly,
    FridaNotRelocatable,
}

impl Reason {
    pub fn name(self) -> &'static str {
        match self {
            Reason::ColdPart => "cold-part",
            Reason::EntryPoint => "entry-point",
            Reason::NotSelected => "not-selected",
            Reason::NoHooks => "no-hooks",
            Reason::NoCode => "no-code",
            Reason::NotDecodable => "not-decodable",
            Reason::TextRelocation => "text-relocation",
            Reason::NoRoom => "no-room",
            Reason::JumpedInto => "jumped-into",
            Reason::RunInto => "run-into",
            Reason::LoopsThroughTable => "loops-through-table",
            Reason::NotRelocatable => "not-relocatable",
            Reason::Overlap => "overlap",
            Reason::Go => "go",
            Reason::OwnText => "own-text",
            Reason::Unwinder => "unwinder",
            Reason::FridaRoom => "frida-room",
            Reason::FridaCall => "frida-call",
            Reason::FridaEntered => "frida-entered",
            Reason::FridaLoop => "frida-loop",
            Reason::FridaJump => "frida-jump",
            Reason::FridaEarly => "frida-early",
            Reason::FridaNotRelocatable => "frida-not-relocatable",
        }
    }
}

impl fmt::Display for Tactic {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Tactic::Jump => "a jump over its first instructions",
            Tactic::JumpIntoPadding => "a jump that reaches into the padding behind it",
            Tactic::JumpOverCall => "a jump over its first instructions, a call among them",
            Tactic::ShortJump => "a short jump to unused bytes nearby",
            Tactic::CallSites => "its call sites, which are all known",
            Tactic::Sled => "a slide into its neighbour's jump, which tells the two apart",
            Tactic::Frida => "Frida's jump over its first sixteen bytes or more",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Reason::ColdPart => "part of another function, jumped into and never called",
            Reason::EntryPoint => "the program's entry point, called by nobody",
            Reason::NotSelected => "left out by -I, -X or --min-size",
            Reason::NoHooks => "hooks are off, by --hooks none or because the program cannot have any",
            Reason::NoCode => "the file holds no code at its address",
            Reason::NotDecodable => "its first bytes are not instructions",
            Reason::TextRelocation => "the dynamic linker writes into its first instructions",
            Reason::NoRoom => {
                "too short for a jump; its address is taken or code without a symbol calls it, so not all calls are known; and no unused bytes or hooked neighbour are near"
            }
            Reason::JumpedInto => "its first bytes are the target of an indirect jump, of a return, or of a jump that cannot be led elsewhere",
            Reason::RunInto => "nobody calls it: control only runs into it from the function before",
            Reason::LoopsThroughTable => "a jump table leads back to its start, which only an exit hook could tell from calls, and the program's runtime forbids those",
            Reason::NotRelocatable => "its first instructions cannot run elsewhere",
            Reason::Overlap => "its patch would overlap another one",
            Reason::Go => "Go code does not keep the C stack's rules",
            Reason::OwnText => "the program may check its own code; --hooks both hooks it all the same",
            Reason::Unwinder => "it belongs to an unwinder, which takes one more step for each hooked frame; --hooks entry hooks it",
            Reason::FridaRoom => "it ends, or jumps away, within the 16 bytes that Frida overwrites",
            Reason::FridaCall => "a call among the 16 bytes that Frida overwrites would return into them",
            Reason::FridaEntered => "a branch leads into the 16 bytes or more that Frida overwrites",
            Reason::FridaLoop => "a loop leads back to its first instruction, where Frida's jump would count it as calls",
            Reason::FridaJump => "it begins with a jump, and Frida would patch where that leads",
            Reason::FridaEarly => "the dynamic linker calls it (an IFUNC resolver) before Frida can be there",
            Reason::FridaNotRelocatable => "the instructions that Frida overwrites cannot run elsewhere",
        })
    }
}

/// The decision for one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    Hooked(Tactic),
    Refused(Reason),
}

/// Functions that turned out not to be hookable after all.
pub(crate) type Failed = HashMap<usize, Reason>;
