//! The output of emission: the bytes of the arena, the patches, and the tables of the plan file.

use crate::blocks::uncounted::Uncounted;
use crate::decide::verdict::Reason;
use crate::emit::code::Code;
use crate::emit::fixups::Fixups;
use gprofinject_abi::plan::{CallJump, FRAMES, FunctionRecord, Patch, TailRecord};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// In [`Emitted::owners`]: these bytes stand for no instructions of the program. They count, or keep the shadow stack.
pub(crate) const NO_OWNER: u32 = u32::MAX;

/// The output of emission. Offsets are arena offsets.
#[derive(Debug, Default)]
pub(crate) struct Emitted {
    /// The bytes of the arena.
    pub code: Code,
    /// One record for each hooked function, by number.
    pub records: Vec<FunctionRecord>,
    /// One record for each tail call with a thunk.
    pub tails: Vec<TailRecord>,
    /// The bytes of the program that are overwritten, sorted by address.
    pub patches: Vec<Patch>,
    /// Jumps in bodies to calls that are still made at their original addresses.
    pub call_jumps: Vec<CallJump>,
    /// Offsets of u64 words to which the agent adds the load bias.
    pub bias_fixups: Vec<u32>,
    /// What depends on the place of a library, if it is one.
    pub fixups: Fixups,
    /// Offsets of u32 words with addresses in the arena, to which the agent adds the lower half of the load bias.
    pub half_bias_fixups: Vec<u32>,
    /// Offsets of the unwind tables, by [`gprofinject_abi::plan::Frame`].
    pub frame_tables: [u32; FRAMES],
    /// Offset of the first function's stubs: see [`gprofinject_abi::plan::PlanHeader`].
    pub stubs: u32,
    /// Length of each function's stubs, in bytes.
    pub stub_len: u32,
    /// Offset of the thunks of tail calls.
    pub tail_code: u32,
    /// The function whose instructions the bytes of the arena stand for, sorted: from each offset on, the index of the
    /// function in the image, or [`NO_OWNER`].
    pub owners: Vec<[u32; 2]>,
    /// Relocated code, sorted. The first instruction of each function has no entry.
    pub moved: Vec<Moved>,
    /// In a Go program: the start of each thunk, and each relocated instruction, with the address of the instruction in the
    /// program at which the stack is the same. Sorted.
    pub originals: Vec<(u32, u64)>,
    /// Whether preempted goroutines continue through the agent.
    pub resumes: bool,
    /// Functions whose first instructions could not be relocated after all, by index in the image.
    pub failed: Vec<(usize, Reason)>,
    /// The addresses of system calls whose code could not be relocated after all.
    pub unredirected: Vec<u64>,
    /// Offset of the copies of counted functions, or the arena's length if there are none.
    pub copies: u32,
    /// Functions that could not be copied after all, by index in the image.
    pub uncounted: Vec<(usize, Uncounted)>,
}

/// Relocated code: a single instruction, with length 1, or several that were copied unchanged.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub(crate) struct Moved {
    /// The original address.
    pub from: u64,
    /// The length in bytes.
    pub len: u32,
    /// The arena offset.
    pub to: u32,
}

impl Emitted {
    /// Adds patches, and keeps all of them sorted.
    pub(crate) fn add_patches(&mut self, patches: Vec<Patch>) {
        self.patches.extend(patches);
        // These are mostly sorted runs, which a stable sort only merges.
        self.patches.sort_by_key(|p| p.address);
    }

    /// Returns whether two patches touch the same bytes.
    pub(crate) fn overlaps(&self) -> bool {
        self.patches.windows(2).any(|pair| pair[0].address + u64::from(pair[0].len) > pair[1].address)
    }
}
