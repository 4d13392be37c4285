//! What emission yields.

use crate::blocks::uncounted::Uncounted;
use crate::decide::verdict::Reason;
use crate::emit::code::Code;
use gprofinject_abi::plan::{CallJump, FunctionRecord, Patch, TailRecord};
use std::ops::Range;

/// What emission yields.
#[derive(Debug, Default)]
pub(crate) struct Emitted {
    pub code: Code,
    pub records: Vec<FunctionRecord>,
    pub tails: Vec<TailRecord>,
    /// Sorted by address.
    pub patches: Vec<Patch>,
    pub call_jumps: Vec<CallJump>,
    pub bias_fixups: Vec<u32>,
    pub half_bias_fixups: Vec<u32>,
    /// Arena offsets of the unwind tables, by [`gprofinject_abi::plan::Frame`].
    pub frame_tables: [u32; 6],
    /// See [`gprofinject_abi::plan::PlanHeader`].
    pub stubs: u32,
    pub stub_len: u32,
    pub tail_code: u32,
    /// Sorted: arena offset from which on the bytes belong to the function with that number.
    pub owners: Vec<(u32, u32)>,
    /// What of the arena is used: the rest stays zero.
    pub used: Vec<Range<usize>>,
    /// Sorted: code that stands elsewhere now, but for the first instruction of each function: link address,
    /// length, arena offset. Either a single instruction, length 1, or several that were copied as they are.
    pub moved: Vec<(u64, u32, u32)>,
    /// Functions that could not be moved after all.
    pub failed: Vec<(usize, Reason)>,
    /// Arena offset of the copies of counted functions; where there are none, the arena's length.
    pub copies: u32,
    /// Functions that could not be copied after all.
    pub uncounted: Vec<(usize, Uncounted)>,
}

impl Emitted {
    /// Adds patches and keeps all in order.
    pub(crate) fn add_patches(&mut self, patches: Vec<Patch>) {
        self.patches.extend(patches);
        // Sorted runs, mostly, which a stable sort takes advantage of.
        self.patches.sort_by_key(|p| p.address);
    }

    /// Whether two patches touch the same bytes.
    pub(crate) fn overlaps(&self) -> bool {
        self.patches.windows(2).any(|pair| pair[0].address + u64::from(pair[0].len) > pair[1].address)
    }
}
