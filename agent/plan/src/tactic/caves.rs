//! Caves: unused bytes that short jumps lead to, and jump on from.

use super::{Decider, JUMP, Tactic};
use crate::start::{Start, is_padding};

impl Decider<'_, '_, '_> {
    /// Finds five unused bytes that a short branch ending at `from` can reach, and takes them.
    pub(super) fn cave(&mut self, from: u64, for_function: usize) -> Option<u64> {
        const REACH: u64 = 128;
        let functions = &self.image.functions;
        let (lo, hi) = (from.saturating_sub(REACH), from + REACH - 1);
        let own = self.hooks.functions();
        // It is not far away.
        let before = (own.start..for_function).rev().take_while(|&j| functions[j].limit > lo);
        let first = before.last().unwrap_or(for_function);
        let reached = (first..own.end).take_while(|&j| functions[j].address <= hi);
        for j in reached {
            if let Some(at) = self.padding_cave(j, lo, hi) {
                return Some(at);
            }
            if j != for_function
                && let Some(at) = self.dead_cave(j, lo, hi)
            {
                return Some(at);
            }
        }
        None
    }

    fn padding_cave(&mut self, j: usize, lo: u64, hi: u64) -> Option<u64> {
        let f = &self.image.functions[j];
        let end = f.address + f.size;
        // Skipped bytes below `lo` are given up with it.
        let at = (end + self.padding_used[j]).max(lo);
        // Mostly there is no room: asked first, and for many neighbours.
        if at > hi || at + JUMP > f.limit || !is_padding(self.image, self.flow, end, at + JUMP, f.limit) {
            return None;
        }
        self.padding_used[j] = at + JUMP - end;
        Some(at)
    }

    /// Bytes behind the near jump of function `j`, whose relocation grows over them.
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

    /// gum leaves no bytes unused. Where a neighbour needs some, function `j` gets the built-in jump after all.
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
