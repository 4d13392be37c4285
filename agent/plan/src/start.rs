//! The first bytes of a function: what stands there, who comes there, and how far it can be moved.

use crate::flow::{Branch, BranchKind, Flow, NEAR, function_at};
use crate::predecode::Class;
use crate::tactic::sled::LONGEST;
use crate::tactic::{JUMP, foreign};
use gprofinject_image::x86::{falls_through, has_branch, is_call, is_nop};
use gprofinject_image::{Function, FunctionKind, Image};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction};

/// One instruction near the start; offsets are from the hook point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub offset: u64,
    pub end: u64,
    pub call: bool,
    pub falls_through: bool,
}

/// The start of one function.
#[derive(Debug)]
pub struct Start {
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

/// The hooked function that code at function `index` counts as: a cold part is its parent.
pub fn owner(image: &Image, index: usize) -> usize {
    match image.functions.get(index).map(|f| f.kind) {
        Some(FunctionKind::Cold(Some(parent))) => parent,
        _ => index,
    }
}

/// Whether an `endbr64` stands at the function's start and may stay: there must be room behind it.
pub fn hook_point(image: &Image, f: &Function) -> u64 {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    let starts = image.code_at(f.address, 4).is_some_and(|b| b == ENDBR64);
    // A function of five bytes (endbr64; ret) gives up its endbr64 rather than its count: nothing
    // enforces it in user space.
    let room = (f.limit - f.address).saturating_sub(4);
    if starts && f.size > 4 && (f.size >= 9 || room >= 5) { f.address + 4 } else { f.address }
}

impl Start {
    /// None: there is no code in the file at the function's address.
    pub fn of(image: &Image, flow: &Flow, index: usize) -> Option<Start> {
        Start::up_to(image, flow, index, LONGEST)
    }

    /// With the instructions of the first `reach` bytes, at least. All up to [`NEAR`] bytes where branches lead back
    /// among them, which are best moved as well.
    pub fn up_to(image: &Image, flow: &Flow, index: usize, reach: u64) -> Option<Start> {
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
        let own = owner(image, b.function as usize) == index;
        let sound = !flow.functions.get(b.function as usize).is_none_or(|f| f.undecodable);
        if to_start {
            // A call, or a jump from elsewhere: an entry like any other.
            if own && b.kind != BranchKind::Call && sound {
                self.soft.push((0, b));
            }
        } else if b.target > self.hook {
            let offset = b.target - self.hook;
            if sound && (own || foreign::can_be_led(image, b)) {
                self.soft.push((offset, b));
            } else {
                self.fixed.push(offset);
            }
        }
    }

    /// Whether something other than code in `0..within` leads into `lo..hi`.
    pub fn entered(&self, lo: u64, hi: u64, within: u64) -> bool {
        let inside = |b: &Branch| b.site >= self.hook && b.site < self.hook + within;
        self.fixed.iter().any(|t| (lo..hi).contains(t))
            || self.soft.iter().any(|(t, b)| (lo..hi).contains(t) && !inside(b))
    }

    /// The end of the first instruction that ends at or behind `offset`.
    pub fn boundary(&self, offset: u64) -> Option<u64> {
        self.steps.iter().map(|s| s.end).find(|&end| end >= offset)
    }

    pub fn is_boundary(&self, offset: u64) -> bool {
        self.steps.iter().any(|s| s.offset == offset)
    }
}

/// The instructions that a [`JUMP`] at the hook point overwrites, as seen when the function was decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Bytes of them. 0: there are no such, or a call is among them.
    pub len: u8,
    /// They can be copied anywhere: none depends on its own address, and control goes on behind the last.
    pub movable: bool,
    seen: bool,
}

impl Head {
    /// Looks at the function's instructions in turn.
    pub fn look(&mut self, i: &Instruction, hook: u64) {
        let fixed = has_branch(i) || i.is_ip_rel_memory_operand() || !falls_through(i);
        self.note(i.ip(), i.next_ip(), hook, fixed, is_call(i));
    }

    /// The same for an instruction of `len` bytes, of which is known what class it is of, and whether it has an operand
    /// that is relative to RIP.
    #[inline(always)]
    pub(crate) fn pass(&mut self, class: Class, ip: u64, len: u8, is_relative: bool, hook: u64) {
        if !self.seen {
            let is_branch = matches!(class, Class::Call | Class::Jump | Class::Conditional | Class::Return);
            self.note(ip, ip + u64::from(len), hook, is_branch || is_relative, class == Class::Call);
        }
    }

    fn note(&mut self, ip: u64, end: u64, hook: u64, fixed: bool, call: bool) {
        if self.seen || ip < hook {
            return;
        }
        self.movable = (self.movable || ip == hook) && !fixed;
        self.seen = call || end - hook >= JUMP;
        if self.seen && !call {
            self.len = (end - hook) as u8;
        }
    }
}

/// The common case, quickly: room for a [`JUMP`], no call among the instructions there, and nothing that
/// leads anywhere but to the function's start. Answers with the hook point and the bytes to be relocated.
pub fn simple_start(image: &Image, flow: &Flow, index: usize) -> Option<(u64, u64)> {
    let f = &image.functions[index];
    let len = u64::from(flow.functions[index].head.len);
    if len == 0 {
        return None;
    }
    let hook = hook_point(image, f);
    let entered = |b: &Branch| {
        let entry = b.target == f.address || b.target == hook;
        entry && (b.kind == BranchKind::Call || owner(image, b.function as usize) != index)
    };
    let plain = flow.branches_into(index, hook + JUMP).iter().all(entered)
        && flow.indirect_in(hook + 1, hook + JUMP).is_empty();
    plain.then_some((hook, len))
}

/// Whether the bytes of `lo..hi`, behind function `index`, which has room up to `limit`, are padding that nobody needs:
/// control does not run on through it from the function.
pub fn is_free_padding(image: &Image, flow: &Flow, index: usize, lo: u64, hi: u64, limit: u64) -> bool {
    let f = &flow.functions[index];
    !(f.runs_on || f.ends_in_call || f.undecodable) && is_padding(image, flow, lo, hi, limit)
}

/// Whether the bytes of `lo..hi`, behind a function that has room up to `limit`, are padding: nops and
/// breakpoints that nobody jumps to, or zeros that nobody reads. Control may run through it: see [`is_free_padding`].
pub fn is_padding(image: &Image, flow: &Flow, lo: u64, hi: u64, limit: u64) -> bool {
    if lo >= hi || hi > limit || function_at(image, lo).is_some_and(|i| image.functions[i].size > 0) {
        return false;
    }
    // The last nop may go on behind `hi`.
    let Some(bytes) = image.code_at(lo, limit - lo) else { return false };
    let unused = || flow.branches_to(lo, hi).is_empty() && flow.indirect_in(lo, hi).is_empty();
    // Some linkers align with zeros.
    if bytes.len() < 16 && bytes.iter().all(|&b| b == 0) {
        return unused() && !flow.is_taken_in(lo, limit);
    }
    let mut decoder = Decoder::with_ip(64, bytes, lo, DecoderOptions::NONE);
    while decoder.ip() < hi {
        let i = decoder.decode();
        if !is_nop(&i) && i.code() != Code::Int3 {
            return false;
        }
    }
    unused()
}
