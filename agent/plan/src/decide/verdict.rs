//! The possible decisions about a function, and their names and descriptions for the user.

use std::collections::{HashMap, HashSet};
use std::fmt;

use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// How a function is hooked.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, TryFromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(u8)]
pub enum Tactic {
    /// A `jmp rel32` over the first instructions, which are relocated.
    Jump,
    /// A [`Tactic::Jump`] that reaches into the padding after a short function.
    JumpIntoPadding,
    /// A [`Tactic::Jump`] whose relocated instructions end with a call. The call still pushes the original
    /// return address.
    JumpOverCall,
    /// A `jmp rel8` to a cave, which holds the `jmp rel32`.
    ShortJump,
    /// Nothing of the function is overwritten; every call of it and every jump to it is redirected to the
    /// thunk. This is possible only if the function's address is not taken.
    CallSites,
    /// A `push rsp` that runs on into the patch of the next function. That patch finds out from the stack
    /// which function was called.
    Sled,
    /// Frida's gum overwrites the first sixteen bytes or more.
    Frida,
}

impl Tactic {
    /// Returns the tactic's short name, as lists and filters use it.
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

/// Why a function is not hooked. The text for each is its [`Display`](fmt::Display).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, TryFromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(u8)]
pub enum Reason {
    /// It is part of another function: it is jumped into and never called.
    ColdPart,
    /// It is the ELF entry point.
    EntryPoint,
    /// The user has left it out by its name.
    NotSelected,
    /// It is smaller than the user wants.
    TooSmall,
    /// Hooks are off altogether.
    NoHooks,
    /// The file has no code at its address.
    NoCode,
    /// Its first bytes are no instructions.
    NotDecodable,
    /// The dynamic linker writes into its first instructions.
    TextRelocation,
    /// No patch fits, and there is neither a cave nor a hooked function nearby.
    NoRoom,
    /// Something that cannot be redirected leads into its first instructions.
    JumpedInto,
    /// Control only runs into it: see [`crate::flow::falls`].
    RunInto,
    /// The code contradicts that a function begins there: see [`crate::flow::starts`].
    NoStart,
    /// A jump table leads back to its start. Only an exit hook could distinguish that from a call, and the program's runtime or the
    /// function itself forbids exit hooks.
    LoopsThroughTable,
    /// Its first instructions cannot run elsewhere.
    NotRelocatable,
    /// The arena is too far away: a jump reaches 2 GiB.
    Far,
    /// Its patch would overlap another one.
    Overlap,
    /// Signal handlers return to it.
    SignalReturn,
    /// It stands for an indirect jump, call or return: see [`crate::decide::retpoline`].
    Retpoline,
    /// The program may check its own code.
    OwnText,
    /// A runtime has compiled it for itself: see [`crate::decide::runtime_code`].
    RuntimeCode,
    /// A runtime copies its machine code: see [`crate::decide::runtime_code`].
    Copied,
    /// It belongs to an unwinder, and exits are hooked.
    Unwinder,
    /// It takes or returns a condition in the processor's flags: see [`crate::decide::flags`].
    Flags,
    /// The agent calls it, or changes it itself: see [`crate::decide::agents`].
    Agent,
    /// The C library compares the address of an interrupted instruction with addresses in it: see
    /// [`crate::flow::system_calls`].
    CancellationPoint,
    /// It is the dynamic linker's, in which the functions that the agent calls are not known: see [`crate::decide::agents`].
    NoNames,
    /// It ends or jumps away within the bytes that Frida's gum overwrites.
    FridaRoom,
    /// A call among those bytes would return into them.
    FridaCall,
    /// A branch leads into those bytes.
    FridaEntered,
    /// A loop leads back to its first instruction, where gum's jump would count it as calls.
    FridaLoop,
    /// It begins with a jump, and gum would patch the target of that.
    FridaJump,
    /// The dynamic linker calls it before gum is loaded.
    FridaEarly,
    /// The instructions that gum overwrites cannot run elsewhere.
    FridaNotRelocatable,
    /// Every patch would relocate a call, and the processor's shadow stack would keep the address behind the relocated one.
    ShadowStack,
    /// Only code of its own module can call it, and only calls from outside are counted.
    Inner,
}

impl Reason {
    /// Returns the reason's short name, as lists use it.
    pub fn name(self) -> &'static str {
        match self {
            Reason::ColdPart => "cold-part",
            Reason::EntryPoint => "entry-point",
            Reason::NotSelected => "not-selected",
            Reason::TooSmall => "too-small",
            Reason::NoHooks => "no-hooks",
            Reason::NoCode => "no-code",
            Reason::NotDecodable => "not-decodable",
            Reason::TextRelocation => "text-relocation",
            Reason::NoRoom => "no-room",
            Reason::JumpedInto => "jumped-into",
            Reason::RunInto => "run-into",
            Reason::NoStart => "no-start",
            Reason::LoopsThroughTable => "loops-through-table",
            Reason::NotRelocatable => "not-relocatable",
            Reason::Far => "far",
            Reason::Overlap => "overlap",
            Reason::SignalReturn => "signal-return",
            Reason::Retpoline => "retpoline",
            Reason::OwnText => "own-text",
            Reason::RuntimeCode => "runtime-code",
            Reason::Copied => "copied",
            Reason::Unwinder => "unwinder",
            Reason::Flags => "flags",
            Reason::Agent => "agent",
            Reason::CancellationPoint => "cancellation-point",
            Reason::NoNames => "no-names",
            Reason::FridaRoom => "frida-room",
            Reason::FridaCall => "frida-call",
            Reason::FridaEntered => "frida-entered",
            Reason::FridaLoop => "frida-loop",
            Reason::FridaJump => "frida-jump",
            Reason::FridaEarly => "frida-early",
            Reason::FridaNotRelocatable => "frida-not-relocatable",
            Reason::ShadowStack => "shadow-stack",
            Reason::Inner => "inner",
        }
    }
}

impl fmt::Display for Tactic {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Tactic::Jump => "a jump over its first instructions",
            Tactic::JumpIntoPadding => "a jump that reaches into the padding after the function",
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
            Reason::NotSelected => "left out by -I or -X",
            Reason::TooSmall => "smaller than --min-size",
            Reason::NoHooks => "hooks are off, by --hooks none or because the program cannot have any",
            Reason::NoCode => "the file holds no code at its address",
            Reason::NotDecodable => "its first bytes are not instructions",
            Reason::TextRelocation => "the dynamic linker writes into its first instructions",
            Reason::NoRoom => {
                "too short for a jump; its address is taken or code without a symbol calls it, so not all calls are known; and no unused bytes or hooked neighbour are near"
            }
            Reason::JumpedInto => "its first bytes are the target of an indirect jump, of a return, or of a jump that cannot be redirected",
            Reason::RunInto => "nobody calls it: control only runs into it from the function before",
            Reason::NoStart => "no function begins there, whatever the symbol or the frame description says: nobody calls it, and the code in front of it continues in it",
            Reason::LoopsThroughTable => "a jump table leads back to its start, which only an exit hook could tell from calls, and its exit cannot be hooked or it calls itself in the same way",
            Reason::NotRelocatable => "its first instructions cannot run elsewhere",
            Reason::Far => "no room for hooks is near enough: a jump reaches 2 GiB, and the program's code is farther apart",
            Reason::Overlap => "its patch would overlap another one",
            Reason::SignalReturn => "signal handlers return to it, and nobody calls it",
            Reason::Retpoline => "it stands for an indirect jump, call or return, which leads to another function or stays in the one that uses it",
            Reason::OwnText => "the program may check its own code; --hooks both hooks it all the same",
            Reason::RuntimeCode => "a runtime has compiled it for itself, and decodes and unwinds it in its own way",
            Reason::Copied => "a runtime copies its machine code to other addresses, where its patch would lead astray",
            Reason::Unwinder => "it belongs to an unwinder, which takes one more step for each hooked frame; --hooks entry hooks it, if nothing is measured",
            Reason::Flags => "it takes a condition in the processor's flags from its caller, or returns one, and hooks change the flags",
            Reason::Agent => "gprofinject itself calls, changes or recognises it in the process",
            Reason::CancellationPoint => "the C library looks at the address at which a signal interrupts it, to cancel the thread",
            Reason::NoNames => "the dynamic linker's functions have no names (a debug package of the C library has them), and gprofinject calls some of them itself",
            Reason::FridaRoom => "it ends, or jumps away, within the 16 bytes that Frida overwrites",
            Reason::FridaCall => "a call among the 16 bytes that Frida overwrites would return into them",
            Reason::FridaEntered => "a branch leads into the 16 bytes or more that Frida overwrites",
            Reason::FridaLoop => "a loop leads back to its first instruction, where Frida's jump would count it as calls",
            Reason::FridaJump => "it begins with a jump, and Frida would patch where that leads",
            Reason::FridaEarly => "the dynamic linker calls it (an IFUNC resolver) before Frida can be there",
            Reason::FridaNotRelocatable => "the instructions that Frida overwrites cannot run elsewhere",
            Reason::ShadowStack => "a call among its first instructions would have to be made elsewhere, to which the processor's shadow stack would let it return",
            Reason::Inner => "only its own module can call it, and --outermost counts calls from outside",
        })
    }
}

/// The decision for one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(u8)]
pub enum Verdict {
    /// It is hooked in this way.
    Hooked(Tactic),
    /// It is not hooked, for this reason.
    Refused(Reason),
}

/// Functions that turned out not to be hookable after the decision, by index in the image, with the
/// reasons.
pub(crate) type Failed = HashMap<usize, Reason>;

/// What earlier attempts to decide about the functions have shown.
#[derive(Default)]
pub(crate) struct Earlier {
    /// The functions that cannot be hooked.
    pub(crate) failed: Failed,
    /// Functions that cannot be hooked by a patch into which a branch of another function leads, because that branch could
    /// not be redirected. A shorter patch may still fit.
    pub(crate) unredirected: HashSet<usize>,
}
