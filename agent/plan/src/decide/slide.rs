//! The tactic of sleds: see [`crate::decide::sled`].

use crate::decide::decider::Decider;
use crate::decide::fit::Fit;
use crate::decide::hook::Hook;
use crate::decide::sled::{HOP, LONGEST, Sled};
use crate::decide::start::Start;
use crate::decide::verdict::Tactic;
use crate::flow::padding::is_free_padding;
use gprofinject_image::Image;

/// The largest number of words that may be pushed on the way to one function's jump: a kilobyte of stack.
pub(crate) const DEEPEST: u32 = 128;

/// The largest alignment of a section, in bytes. Fewer bytes than this between two sections of code only
/// align the second one.
const ALIGNMENT: u64 = 16;

/// Makes sleds of the functions for which no other tactic had room. High addresses come first, since a
/// function can slide only into one that is already hooked.
pub(crate) fn sleds(decider: &mut Decider<'_, '_, '_>) {
    if !decider.hooks.functions().any(|i| decider.is_open(i)) {
        return;
    }
    decider.redirected_calls = decider.hooks.values.iter().flatten().flat_map(redirected_calls).collect();
    for may_hop in [false, true] {
        for i in decider.hooks.functions().rev() {
            if decider.is_open(i)
                && (decider.slide(i, DEEPEST).is_some() || may_hop && decider.hop(i).is_some())
            {
                decider.verdicts[i] = Ok(Tactic::Sled);
            }
        }
    }
}

impl Decider<'_, '_, '_> {
    /// Makes function `i` slide into the next one. For that, up to `left` functions after it that are
    /// hooked at their call sites may become sleds.
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

    /// Makes function `i` hop to any hooked function within reach of a short jump.
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

    /// Accepts the fit, and makes the hook a sled.
    fn take(&mut self, i: usize, start: &Start, fit: Fit, sled: Sled) -> Option<()> {
        self.accept(i, start, fit, Tactic::Sled, None, sled.len).ok()?;
        self.hooks[i].as_mut()?.sled = Some(sled);
        self.hooks[sled.next].as_mut()?.slid_into = true;
        Some(())
    }

    /// Returns the number of words that have been pushed when control reaches function `j`, if one more
    /// may follow. If the function is hooked at its call sites, this makes it a sled where possible.
    fn depth(&mut self, j: usize, left: u32) -> Option<u32> {
        if left > 0 && self.hooks[j].as_ref().is_some_and(|h| h.tactic == Tactic::CallSites) {
            let kept = self.hooks[j].take();
            let calls: Vec<_> = kept.iter().flat_map(redirected_calls).collect();
            for call in &calls {
                self.redirected_calls.remove(call);
            }
            if self.slide(j, left - 1).is_none() {
                self.hooks[j] = kept;
                self.redirected_calls.extend(calls);
                return None;
            }
        }
        self.depth_of(j)
    }

    /// Returns the number of words that have been pushed when control reaches function `j`, if another
    /// function may slide into it.
    fn depth_of(&self, j: usize) -> Option<u32> {
        let hook = self.hooks[j].as_ref()?;
        if hook.tactic == Tactic::CallSites || hook.slid_into {
            return None;
        }
        Some(hook.sled.map_or(0, |s| s.depth)).filter(|&d| d < DEEPEST)
    }

    /// Returns whether a call in `lo..hi` is redirected because the called function is hooked at its call
    /// sites.
    fn is_patched(&self, lo: u64, hi: u64) -> bool {
        // Calls do not overlap, so only the last one that begins before `hi` can reach into the range.
        self.redirected_calls.range(..(hi, 0)).next_back().is_some_and(|&(_, last)| last >= lo)
    }

    /// Returns whether the bytes between function `i` and the next one are unused.
    fn is_gap(&self, i: usize, lo: u64, hi: u64) -> bool {
        let edge = self.image.functions[i].limit.min(hi);
        (lo >= edge || is_free_padding(self.image, self.flow, i, lo, edge, edge))
            && (edge >= hi || is_alignment(self.image, edge, hi))
            && self.flow.branches_to(lo, hi).is_empty()
            && self.flow.indirect_in(lo, hi).is_empty()
    }
}

/// Returns the first and the last byte of each call that is redirected to the function's thunk.
fn redirected_calls(hook: &Hook) -> impl Iterator<Item = (u64, u64)> + '_ {
    let retargets = if hook.tactic == Tactic::CallSites { hook.retargets.as_slice() } else { &[] };
    retargets.iter().map(|r| (r.branch.site, r.branch.end() - 1))
}

/// Returns whether these bytes lie between two sections of code only because the second one is aligned.
fn is_alignment(image: &Image, lo: u64, hi: u64) -> bool {
    let ends = image.code_ranges.iter().any(|r| r.end == lo);
    let begins = image.code_ranges.iter().any(|r| r.start == hi);
    let bytes = image.code_at(lo, hi - lo);
    let filled = |b: &[u8]| b.iter().all(|&b| b == 0) || b.iter().all(|&b| b == 0x90 || b == 0xcc);
    ends && begins && hi - lo < ALIGNMENT && bytes.is_some_and(filled)
}
