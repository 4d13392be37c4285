//! The first bytes of a function: what stands there, who comes there, and how far it can be moved.

use crate::decide::sled::LONGEST;
use crate::flow::branch::{Branch, BranchKind, NEAR};
use crate::flow::facts::Flow;
use crate::flow::head::hook_point;
use crate::x86::jump::JUMP;
use gprofinject_image::x86::{falls_through, is_call};
use gprofinject_image::{FunctionKind, Image};
use iced_x86::{Decoder, DecoderOptions};

/// One instruction near the start; offsets are from the hook point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub offset: u64,
    pub end: u64,
    pub call: bool,
    pub falls_through: bool,
}

/// The start of one function.
#[derive(Debug)]
pub(crate) struct Start {
    /// Where the patch goes: the function's first byte, or the one behind its `endbr64`.
    pub hook: u64,
    /// The instructions from the hook point on, as many as can be of interest.
    pub steps: Vec<Step>,
    /// The function's end, from the hook point.
    pub end: u64,
    /// Offsets that something reaches which cannot be led elsewhere: indirect targets, returns of calls.
    pub fixed: Vec<u64>,
    /// Branches of the function itself (or its cold part) to its start or into its first bytes. One to
    /// the start has the offset 0: a loop, not a call.
    pub soft: Vec<(u64, Branch)>,
}

impl Start {
    /// None: there is no code in the file at the function's address.
    pub(crate) fn of(image: &Image, flow: &Flow, index: usize) -> Option<Start> {
        Start::up_to(image, flow, index, LONGEST)
    }

    /// With the instructions of the first `reach` bytes, at least. All up to [`NEAR`] bytes where branches lead back
    /// among them, which are best moved as well.
    pub(crate) fn up_to(image: &Image, flow: &Flow, index: usize, reach: u64) -> Option<Start> {
        /// Bytes of an instruction.
        const MOST: u64 = 15;
        let f = &image.functions[index];
        let hook = hook_point(image, f);
        let end = f.address + f.size - hook;
        let mut start = Start { hook, steps: Vec::new(), end, fixed: Vec::new(), soft: Vec::new() };
        // Behind a short function others stand, with callers of their own.
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

    fn decode(&mut self, bytes: &[u8]) {
        self.steps.reserve(bytes.len() / 3);
        let mut decoder = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE);
        while decoder.can_decode() {
            let i = decoder.decode();
            if i.is_invalid() {
                break;
            }
            // A return address must stay where it is.
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

    fn note_inbound(&mut self, image: &Image, flow: &Flow, index: usize, b: Branch) {
        let address = image.functions[index].address;
        let to_start = b.target == address || b.target == self.hook;
        let own = image.owner(b.function as usize) == index;
        let sound = !flow.functions.get(b.function as usize).is_none_or(|f| f.undecodable);
        if to_start {
            // A call, or a jump from elsewhere: an entry like any other.
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

    /// Whether something other than code in `0..within` leads into `lo..hi`.
    pub(crate) fn entered(&self, lo: u64, hi: u64, within: u64) -> bool {
        let inside = |b: &Branch| b.site >= self.hook && b.site < self.hook + within;
        self.fixed.iter().any(|t| (lo..hi).contains(t))
            || self.soft.iter().any(|(t, b)| (lo..hi).contains(t) && !inside(b))
    }

    /// The end of the first instruction that ends at or behind `offset`.
    pub(crate) fn boundary(&self, offset: u64) -> Option<u64> {
        self.steps.iter().map(|s| s.end).find(|&end| end >= offset)
    }

    pub(crate) fn is_boundary(&self, offset: u64) -> bool {
        self.steps.iter().any(|s| s.offset == offset)
    }
}

/// The common case, quickly: room for a [`JUMP`], no call among the instructions there, and nothing that
/// leads anywhere but to the function's start. Answers with the hook point and the bytes to be relocated.
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

/// Whether the branch of another function may be led elsewhere. Nothing is known of what a cold part without a
/// function shares with others.
pub(crate) fn can_be_redirected(image: &Image, branch: Branch) -> bool {
    let from = image.functions.get(branch.function as usize);
    from.is_some_and(|f| f.kind != FunctionKind::Cold(None))
}
