//! Functions without room for a jump that slide into the function behind them.
//!
//! A `ret` between other functions has one byte. Where its address is taken and no cave is near, that
//! byte becomes `push rsp`, and control falls into the patch of the next function. A word that equals its
//! own address plus 8 is none that a call leaves, so the code behind the next function's jump sees who
//! was meant, takes the words off again and goes to the right thunk:
//!
//! ```text
//! f1:  ret              push rsp                  sled:  lea rsp, [rsp+8]
//! f2:  xor eax, eax     push rsp                         cmp [rsp-8], rsp
//!      ret              nop                              je  pushed once
//! g:   push rbx         jmp sled                         lea rsp, [rsp-8]
//!      ...                                               jmp thunk of g
//!                                                 once:  the same for f2
//!                                                 twice: jmp thunk of f1
//! ```
//!
//! A function with three bytes that does not end at one with a jump can hop: `push rsp; jmp short`.
//! Every register but the flags is as it was at the thunk's first instruction, and so is every word from
//! the original stack pointer on; below it, all that is read lies within 128 bytes of rsp.

use super::{Decider, Fit, Hook, Tactic};
use crate::start::{Start, is_free_padding};
use gprofinject_image::Image;
use std::collections::HashMap;

/// Most words pushed on the way to one function's jump: a kilobyte of stack.
pub const DEEPEST: u32 = 128;
/// Bytes of `push rsp; jmp rel8`.
const HOP: u64 = 3;
/// Most bytes of a patch.
pub const LONGEST: u64 = 16;
/// Sections of code begin at multiples of this at most, where anything stands between them.
const ALIGNMENT: u64 = 16;

const PUSH_RSP: u8 = 0x54;
const JMP_SHORT: u8 = 0xeb;
/// `nop`s of one to four bytes.
const NOPS: [&[u8]; 4] = [&[0x90], &[0x66, 0x90], &[0x0f, 0x1f, 0x00], &[0x0f, 0x1f, 0x40, 0x00]];

/// How a hook with [`Tactic::Sled`] goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sled {
    /// Index in the image of the function it leads into: another sled, or the one with the jump.
    pub next: usize,
    /// Words pushed until the jump is reached.
    pub depth: u32,
    /// Bytes of the patch.
    pub len: u64,
    /// Where a short jump leads to; None: control falls into the next function.
    pub hop: Option<u64>,
}

impl Sled {
    /// The patch at `at`. None: the hop is too far.
    pub fn bytes(&self, at: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![PUSH_RSP];
        if let Some(target) = self.hop {
            bytes.extend([JMP_SHORT, crate::emit::short(at + HOP, target)?]);
        } else {
            while let rest @ 1.. = (self.len as usize).saturating_sub(bytes.len()) {
                bytes.extend(NOPS[rest.min(NOPS.len()) - 1]);
            }
        }
        Some(bytes)
    }
}

/// A function with a jump and those that slide into it, as indices of hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub head: usize,
    /// The one that pushes once, the one that pushes twice, ...
    pub sleds: Vec<usize>,
}

/// All chains, in the order of their heads.
pub fn chains(hooks: &[Hook]) -> Vec<Chain> {
    let before: HashMap<usize, usize> =
        hooks.iter().enumerate().filter_map(|(n, h)| Some((h.sled?.next, n))).collect();
    let mut chains = Vec::new();
    for (head, hook) in hooks.iter().enumerate() {
        if hook.sled.is_some() || !before.contains_key(&hook.function) {
            continue;
        }
        let next = |&n: &usize| before.get(&hooks[n].function).copied();
        let sleds = std::iter::successors(next(&head), next).collect();
        chains.push(Chain { head, sleds });
    }
    chains
}

/// Bytes of the code for each function but the last one.
const LEVEL: usize = 22;
const JUMP: usize = 5;

/// Bytes of the code behind the jump of a function with `sleds` others before it.
pub fn code_len(sleds: usize) -> usize {
    sleds * LEVEL + JUMP
}

/// Where in that code the part of the function begins that pushes `depth` words.
pub fn level(depth: usize) -> usize {
    depth * LEVEL
}

/// The code behind the jump, at `at`; `thunks` begins with that of the function with the jump.
pub fn code(at: u64, thunks: &[u64]) -> Vec<u8> {
    const CHECK: [u8; 17] = [
        0x48, 0x8d, 0x64, 0x24, 0x08, // lea rsp, [rsp+8]
        0x48, 0x39, 0x64, 0x24, 0xf8, // cmp [rsp-8], rsp
        0x74, 0x0a, // je over the next two
        0x48, 0x8d, 0x64, 0x24, 0xf8, // lea rsp, [rsp-8]
    ];
    let mut code = Vec::with_capacity(code_len(thunks.len().saturating_sub(1)));
    for (n, thunk) in thunks.iter().enumerate() {
        if n + 1 < thunks.len() {
            code.extend(CHECK);
        }
        let end = at.wrapping_add((code.len() + JUMP) as u64);
        code.push(0xe9);
        code.extend((thunk.wrapping_sub(end) as u32).to_le_bytes());
    }
    code
}

impl Decider<'_, '_, '_> {
    /// For all that have found no room otherwise. From high addresses to low ones: a function can slide
    /// only into one that is hooked.
    pub(super) fn sleds(&mut self) {
        if !self.hooks.functions().any(|i| self.is_open(i)) {
            return;
        }
        self.led_calls = self.hooks.values.iter().flatten().flat_map(led_calls).collect();
        for may_hop in [false, true] {
            for i in self.hooks.functions().rev() {
                if self.is_open(i) && (self.slide(i, DEEPEST).is_some() || may_hop && self.hop(i).is_some()) {
                    self.verdicts[i] = Ok(Tactic::Sled);
                }
            }
        }
    }

    /// Into the function right behind this one. `left` bounds how many of those whose call sites are
    /// patched may become sleds for it.
    fn slide(&mut self, i: usize, left: u32) -> Option<()> {
        let start = Start::of(self.image, self.flow, i)?;
        let next = i + 1;
        let (end, goal) = (start.hook + start.end, self.image.functions.get(next)?.address);
        let len = goal - start.hook;
        let whole = start.steps.last().is_some_and(|s| s.end == start.end);
        if !whole || len > LONGEST || start.fixed.iter().any(|&t| t < len) || self.is_patched(start.hook, end)
        {
            return None;
        }
        if end < goal && (self.padding_used[i] != 0 || !self.is_gap(i, end, goal)) {
            return None;
        }
        let depth = self.depth(next, left)? + 1;
        self.padding_used[i] = goal - end;
        let over_call = start.steps.iter().any(|s| s.call);
        let fit = Fit { relocated: start.end, over_call };
        self.take(i, &start, fit, Sled { next, depth, len, hop: None })
    }

    /// Into any hooked function within reach of a short jump.
    fn hop(&mut self, i: usize) -> Option<()> {
        const REACH: u64 = 128;
        let start = Start::of(self.image, self.flow, i)?;
        let fit = |over_call| self.fit(i, &start, HOP, over_call).ok();
        let (fit, padded) = fit(false).or_else(|| fit(true))?;
        if self.is_patched(start.hook, start.hook + fit.relocated) {
            return None;
        }
        let from = start.hook + HOP;
        let functions = &self.image.functions;
        let (lo, hi) = (from.saturating_sub(REACH), from + REACH - 1);
        let first = functions.partition_point(|f| f.limit <= lo);
        let reachable = (first..functions.len()).take_while(|&j| functions[j].address <= hi);
        let goals: Vec<(u32, u64, usize)> = reachable
            .filter_map(|j| {
                let at = self.hooks[j].as_ref()?.at;
                let depth = self.depth_of(j)?;
                (lo..=hi).contains(&at).then_some((depth, at, j))
            })
            .collect();
        let &(depth, at, next) = goals.iter().min()?;
        if padded {
            self.padding_used[i] = self.padding_used[i].max(HOP - start.end);
        }
        self.take(i, &start, fit, Sled { next, depth: depth + 1, len: HOP, hop: Some(at) })
    }

    fn take(&mut self, i: usize, start: &Start, fit: Fit, sled: Sled) -> Option<()> {
        self.accept(i, start, fit, Tactic::Sled, None, sled.len).ok()?;
        self.hooks[i].as_mut()?.sled = Some(sled);
        self.hooks[sled.next].as_mut()?.slid_into = true;
        Some(())
    }

    /// Words pushed by who enters at function `j`, if one more may follow. A function whose call sites are
    /// patched becomes a sled, if it can.
    fn depth(&mut self, j: usize, left: u32) -> Option<u32> {
        if left > 0 && self.hooks[j].as_ref().is_some_and(|h| h.tactic == Tactic::CallSites) {
            let kept = self.hooks[j].take();
            let calls: Vec<_> = kept.iter().flat_map(led_calls).collect();
            for call in &calls {
                self.led_calls.remove(call);
            }
            if self.slide(j, left - 1).is_none() {
                self.hooks[j] = kept;
                self.led_calls.extend(calls);
                return None;
            }
        }
        self.depth_of(j)
    }

    fn depth_of(&self, j: usize) -> Option<u32> {
        let hook = self.hooks[j].as_ref()?;
        if hook.tactic == Tactic::CallSites || hook.slid_into {
            return None;
        }
        Some(hook.sled.map_or(0, |s| s.depth)).filter(|&d| d < DEEPEST)
    }

    /// Whether the call of another function that is hooked at its call sites stands there.
    fn is_patched(&self, lo: u64, hi: u64) -> bool {
        // One that begins before `lo` may reach behind it, if it is the last one.
        self.led_calls.range(..(hi, 0)).next_back().is_some_and(|&(_, last)| last >= lo)
    }

    /// Whether nobody needs the bytes between function `i` and the next one.
    fn is_gap(&self, i: usize, lo: u64, hi: u64) -> bool {
        let edge = self.image.functions[i].limit.min(hi);
        (lo >= edge || is_free_padding(self.image, self.flow, i, lo, edge, edge))
            && (edge >= hi || is_alignment(self.image, edge, hi))
            && self.flow.branches_to(lo, hi).is_empty()
            && self.flow.indirect_in(lo, hi).is_empty()
    }
}

/// First and last bytes of the calls that lead to the function's thunk instead of it.
fn led_calls(hook: &Hook) -> impl Iterator<Item = (u64, u64)> + '_ {
    let retargets = if hook.tactic == Tactic::CallSites { hook.retargets.as_slice() } else { &[] };
    retargets.iter().map(|r| (r.branch.site, r.branch.end() - 1))
}

/// Whether these bytes lie between two sections of code only because the second one is aligned.
fn is_alignment(image: &Image, lo: u64, hi: u64) -> bool {
    let ends = image.code_ranges.iter().any(|r| r.end == lo);
    let begins = image.code_ranges.iter().any(|r| r.start == hi);
    let bytes = image.code_at(lo, hi - lo);
    let filled = |b: &[u8]| b.iter().all(|&b| b == 0) || b.iter().all(|&b| b == 0x90 || b == 0xcc);
    ends && begins && hi - lo < ALIGNMENT && bytes.is_some_and(filled)
}

#[cfg(test)]
mod tests;
