//! The first bytes of a function: its instructions there, what leads to them, and how far they can be
//! relocated.

use crate::decide::sled::LONGEST;
use crate::flow::branch::{Branch, BranchKind, NEAR};
use crate::flow::facts::Flow;
use crate::flow::head::hook_point;
use crate::x86::jump::JUMP;
use gprofinject_image::x86::{falls_through, is_call};
use gprofinject_image::{FunctionKind, Image};
use iced_x86::{Decoder, DecoderOptions};

/// One of the first instructions of a function. Offsets count bytes from the hook point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Offset of the instruction.
    pub offset: u64,
    /// Offset of the next instruction.
    pub end: u64,
    /// Whether it pushes a return address.
    pub call: bool,
    /// Whether control may continue with the instruction after it.
    pub falls_through: bool,
}

/// The start of one function.
#[derive(Debug)]
pub(crate) struct Start {
    /// Address of the patch: the function's first byte, or the first byte after its `endbr64`.
    pub hook: u64,
    /// The instructions from the hook point on, as many as the tactics can need.
    pub steps: Vec<Step>,
    /// Offset of the function's end.
    pub end: u64,
    /// Offsets at which control arrives from something that cannot be redirected: targets of indirect
    /// branches, and return addresses of calls. Sorted.
    pub fixed: Vec<u64>,
    /// Branches that can be redirected and lead to the function's start or into its first bytes, each with
    /// the offset of its target. Those with offset 0 lead to the start and come from the function itself:
    /// they are loops, not calls.
    pub soft: Vec<(u64, Branch)>,
}

impl Start {
    /// Reads the start of function `index`. Returns `None` if the file has no code at its address.
    pub(crate) fn of(image: &Image, flow: &Flow, index: usize) -> Option<Start> {
        Start::up_to(image, flow, index, LONGEST)
    }

    /// Reads at least the instructions of the first `reach` bytes of function `index`. If branches lead
    /// back among them, it reads up to [`NEAR`] bytes, because such branches are best relocated too.
    /// Returns `None` if the file has no code there.
    pub(crate) fn up_to(image: &Image, flow: &Flow, index: usize, reach: u64) -> Option<Start> {
        /// Length of the longest x86 instruction, in bytes.
        const MOST: u64 = 15;
        let f = &image.functions[index];
        let hook = hook_point(image, f);
        let end = f.address + f.size - hook;
        let mut start = Start { hook, steps: Vec::new(), end, fixed: Vec::new(), soft: Vec::new() };
        // After a short function, other functions follow, with branches to them.
        let near = end.clamp(LONGEST, NEAR);
        for &b in flow.branches_into(index, hook + near) {
            start.note_inbound(image, flow, index, b);
        }
        let reach = if start.soft.is_empty() { (reach + MOST).min(NEAR) } else { NEAR };
        start.decode(image.code_at(hook, end.min(reach))?);
        start.fixed.extend(flow.indirect_in(hook + 1, hook + near).iter().map(|t| t - hook));
        start.fixed.sort_unstable();
        Some(start)
    }

    /// Reads the instructions.
    fn decode(&mut self, bytes: &[u8]) {
        self.steps.reserve(bytes.len() / 3);
        let mut decoder = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE);
        while decoder.can_decode() {
            let i = decoder.decode();
            if i.is_invalid() {
                break;
            }
            // The return address of a call must stay where it is.
            let call = is_call(&i);
            if call {
                self.fixed.push(i.next_ip());
            }
            self.steps.push(Step {
                offset: i.ip(),
                end: i.next_ip(),
                call,
                falls_through: falls_through(&i),
            });
        }
    }

    /// Records a branch to the function's start or into its first bytes.
    fn note_inbound(&mut self, image: &Image, flow: &Flow, index: usize, b: Branch) {
        let address = image.functions[index].address;
        let to_start = b.target == address || b.target == self.hook;
        let own = image.owner(b.function as usize) == index;
        let sound = !flow.functions.get(b.function as usize).is_none_or(|f| f.undecodable);
        if to_start {
            // A call, or a jump from elsewhere, enters the function like any other.
            if own && b.kind != BranchKind::Call && sound {
                self.soft.push((0, b));
            }
        } else if b.target > self.hook {
            let offset = b.target - self.hook;
            if sound && (own || can_be_redirected(image, b)) {
                self.soft.push((offset, b));
            } else {
                self.fixed.push(offset);
            }
        }
    }

    /// Returns whether something outside `0..within` leads into `lo..hi`. All are offsets.
    pub(crate) fn entered(&self, lo: u64, hi: u64, within: u64) -> bool {
        let inside = |b: &Branch| b.site >= self.hook && b.site < self.hook + within;
        self.fixed.iter().any(|t| (lo..hi).contains(t))
            || self.soft.iter().any(|(t, b)| (lo..hi).contains(t) && !inside(b))
    }

    /// Returns the first end of an instruction that is not below `offset`.
    pub(crate) fn boundary(&self, offset: u64) -> Option<u64> {
        self.steps.iter().map(|s| s.end).find(|&end| end >= offset)
    }

    /// Returns whether an instruction begins at `offset`.
    pub(crate) fn is_boundary(&self, offset: u64) -> bool {
        self.steps.iter().any(|s| s.offset == offset)
    }
}

/// Finds the common case quickly: the function has room for a [`JUMP`], none of the instructions there is
/// a call, and nothing leads to them except to the function's start. Returns the hook point and the number
/// of bytes to relocate, or `None` in any other case.
pub(crate) fn simple_start(image: &Image, flow: &Flow, index: usize) -> Option<(u64, u64)> {
    let f = &image.functions[index];
    let len = u64::from(flow.functions[index].head.len);
    if len == 0 {
        return None;
    }
    let hook = hook_point(image, f);
    let entered = |b: &Branch| {
        let entry = b.target == f.address || b.target == hook;
        entry && (b.kind == BranchKind::Call || image.owner(b.function as usize) != index)
    };
    let plain = flow.branches_into(index, hook + JUMP).iter().all(entered)
        && flow.indirect_in(hook + 1, hook + JUMP).is_empty();
    plain.then_some((hook, len))
}

/// Returns whether a branch that leads into another function may be redirected. If the branch is in a cold
/// part whose parent is unknown, it may not, because that part may be shared.
pub(crate) fn can_be_redirected(image: &Image, branch: Branch) -> bool {
    let index = branch.function as usize;
    let from = image.functions.get(index);
    from.is_some_and(|f| !matches!(f.kind, FunctionKind::Cold(_)) || image.parent(index).is_some())
}
