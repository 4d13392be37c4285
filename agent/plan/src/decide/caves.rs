//! Caves: unused bytes that hold a near jump, within reach of a short one.

use crate::decide::decider::Decider;
use crate::decide::start::Start;
use crate::decide::verdict::Tactic;
use crate::flow::padding::is_free_padding;
use crate::x86::jump::JUMP;
use std::ops::Range;

impl Decider<'_, '_, '_> {
    /// Finds the functions that may have bytes for a cave. A function that is hooked only later is not
    /// among them.
    pub(super) fn look_for_caves(&mut self) {
        let is_roomy = |j: &usize| {
            let f = &self.image.functions[*j];
            let end = f.address + f.size;
            let padded = end + self.padding_used[*j] + JUMP <= f.limit;
            padded
                || self.hooks[*j].as_ref().is_some_and(|hook| match hook.tactic {
                    Tactic::Jump => hook.at + hook.dead_used + JUMP <= end,
                    other => other == Tactic::Frida,
                })
        };
        self.roomy = self.hooks.functions().filter(is_roomy).collect();
        self.searched = true;
    }

    /// Reserves five unused bytes that a short branch ending at `from` can reach. Returns their address,
    /// or `None` if there are no such bytes.
    pub(super) fn cave(&mut self, from: u64, for_function: usize) -> Option<u64> {
        let (lo, hi) = reach(from);
        for n in self.roomy_between(lo, hi, for_function) {
            let j = self.roomy[n];
            if let Some(at) = self.padding_cave(j, lo, hi) {
                return Some(at);
            }
            if j != for_function
                && let Some(at) = self.dead_cave(j, lo, hi)
            {
                return Some(at);
            }
        }
        self.note_cut_short(lo, hi, for_function);
        None
    }

    /// Returns whether any function within reach may have bytes for a cave.
    pub(super) fn may_have_cave(&mut self, from: u64, for_function: usize) -> bool {
        let (lo, hi) = reach(from);
        let may = !self.roomy_between(lo, hi, for_function).is_empty();
        if !may {
            self.note_cut_short(lo, hi, for_function);
        }
        may
    }

    /// Returns which of the roomy functions have bytes or padding between these addresses. `near` is a
    /// function close to them.
    fn roomy_between(&self, lo: u64, hi: u64, near: usize) -> Range<usize> {
        let functions = &self.image.functions;
        let (before, behind) = self.roomy.split_at(self.roomy.partition_point(|&j| j < near));
        let first = before.iter().rev().take_while(|&&j| functions[j].limit > lo).count();
        let last = behind.iter().take_while(|&&j| functions[j].address <= hi).count();
        before.len() - first..before.len() + last
    }

    /// Records that no cave was found for a function, if another part has functions within reach.
    fn note_cut_short(&mut self, lo: u64, hi: u64, function: usize) {
        let own = self.hooks.functions();
        let functions = &self.image.functions;
        let before = own.start.checked_sub(1).is_some_and(|j| functions[j].limit > lo);
        if !self.searched || before || functions.get(own.end).is_some_and(|f| f.address <= hi) {
            self.cut_short.push(function);
        }
    }

    /// Reserves bytes for a cave in the padding after function `j`.
    fn padding_cave(&mut self, j: usize, lo: u64, hi: u64) -> Option<u64> {
        let f = &self.image.functions[j];
        let end = f.address + f.size;
        // Bytes that are skipped because they lie below `lo` are never used.
        let at = (end + self.padding_used[j]).max(lo);
        // Most padding has no room for a cave, and this method is called for many functions, so this test
        // comes first.
        let fits = at <= hi && at + JUMP <= f.limit;
        if !fits || !is_free_padding(self.image, self.flow, j, end, at + JUMP, f.limit) {
            return None;
        }
        self.padding_used[j] = at + JUMP - end;
        Some(at)
    }

    /// Reserves bytes for a cave after the near jump of function `j`, in instructions that are then
    /// relocated as well.
    fn dead_cave(&mut self, j: usize, lo: u64, hi: u64) -> Option<u64> {
        let hook = self.hooks[j].as_ref()?;
        if hook.tactic == Tactic::Frida {
            return self.cave_in_place_of_frida(j, lo, hi);
        }
        if hook.tactic != Tactic::Jump || !hook.retargets.is_empty() {
            return None;
        }
        let at = (hook.at + hook.dead_used).max(lo);
        let end = at + JUMP - hook.at;
        let f = &self.image.functions[j];
        if at > hi || hook.at + end > f.address + f.size {
            return None;
        }
        let start = Start::up_to(self.image, self.flow, j, end)?;
        let relocated = start.boundary(end)?.max(hook.relocated);
        let movable = start.steps.iter().all(|s| s.offset >= relocated || !s.call);
        if !movable || start.entered(JUMP, relocated, relocated) {
            return None;
        }
        let hook = self.hooks[j].as_mut()?;
        hook.relocated = relocated;
        hook.dead_used = end;
        Some(at)
    }

    /// Replaces gum's hook of function `j` by the built-in jump, since gum leaves no bytes unused, and
    /// reserves bytes for a cave after that jump.
    fn cave_in_place_of_frida(&mut self, j: usize, lo: u64, hi: u64) -> Option<u64> {
        let by_frida = self.hooks[j].take();
        let at = match self.near(j, false) {
            Ok(Tactic::Jump) => self.dead_cave(j, lo, hi),
            _ => None,
        };
        if at.is_none() {
            self.hooks[j] = by_frida;
        }
        at
    }
}

/// Returns the lowest and the highest address that a short branch ending at `from` can reach.
fn reach(from: u64) -> (u64, u64) {
    const REACH: u64 = 128;
    (from.saturating_sub(REACH), from + REACH - 1)
}

#[cfg(test)]
mod tests {
    use crate::decide::verdict::Tactic;
    use crate::parallel;
    use crate::testing::{TEXT, image, plan_of, tactics};
    use gprofinject_image::ElfType;

    /// push rbx; mov rbx, rdi; mov rax, rbx; pop rbx; ret
    const SHORT: &[u8] = &[0x53, 0x48, 0x89, 0xfb, 0x48, 0x89, 0xd8, 0x5b, 0xc3];
    /// The same with room for a cave: mov rax, rbx three times.
    const LONG: &[u8] =
        &[0x53, 0x48, 0x89, 0xfb, 0x48, 0x89, 0xd8, 0x48, 0x89, 0xd8, 0x48, 0x89, 0xd8, 0x5b, 0xc3];
    /// xor eax, eax; ret
    const TINY: &[u8] = &[0x31, 0xc0, 0xc3];

    #[test]
    fn a_cave_may_lie_in_a_part_that_another_thread_decides() {
        let count = 2400;
        let last = count / parallel::parts(count) - 1;
        assert!(last + 1 < count);
        let mut functions = vec![SHORT; count];
        (functions[last], functions[last + 1]) = (TINY, LONG);
        let sizes: Vec<usize> = functions.iter().map(|f| f.len()).collect();
        let code = functions.concat();
        let mut image = image(ElfType::Dyn, TEXT, &code, &sizes);
        image.hi = TEXT + code.len() as u64;
        let tactics = tactics(&plan_of(&image, None));
        assert_eq!(tactics[last], Some(Tactic::ShortJump));
        assert!(tactics.iter().enumerate().all(|(n, &t)| n == last || t == Some(Tactic::Jump)));
    }
}
