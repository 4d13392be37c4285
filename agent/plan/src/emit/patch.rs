//! Patches of the program: which bytes are overwritten, and by what.

use crate::blocks::copies::Copies;
use crate::decide::hook::{Hook, Retarget, relocates};
use crate::decide::verdict::Tactic;
use crate::emit::emitted::Emitted;
use crate::emit::layout::Layout;
use crate::flow::branch::{Branch, BranchKind};
use crate::flow::facts::Flow;
use crate::x86::jump::{JUMP, near, near_jump, short};
use crate::x86::relocate::call::CALL_R11;
use crate::x86::relocate::relocated::Relocated;
use gprofinject_abi::plan::{CallJump, Maker, Patch};
use gprofinject_image::Image;

/// Makes a patch. Returns `None` if it is too long, or if the file has no bytes there.
pub(super) fn patch(image: &Image, address: u64, replacement: &[u8]) -> Option<Patch> {
    // The original bytes are those of the file, because calls of another profiler may have been removed
    // from the image's code.
    let original = image.data_at(address, replacement.len() as u64)?;
    let mut patch = Patch { address, len: replacement.len() as u8, ..Default::default() };
    patch.original.get_mut(..original.len())?.copy_from_slice(original);
    patch.replacement.get_mut(..replacement.len())?.copy_from_slice(replacement);
    Some(patch)
}

/// Returns the patches that remove calls of another profiler from the program (see [`Image::removed`]).
/// Code that a hook or a copy relocates has been relocated without those calls.
pub(crate) fn removals(image: &Image, hooks: &[Hook], copies: &Copies) -> Vec<Patch> {
    let mut taken: Vec<(u64, u64)> = Vec::new();
    if !image.removed.is_empty() {
        taken.extend(hooks.iter().flat_map(|h| h.spans().chain([(h.at, h.at + h.relocated)])));
        taken.extend(copies.stretches());
        taken.sort_unstable();
    }
    // The highest end of the ranges that begin before the end of the removed bytes.
    let mut reach = 0;
    let mut taken = taken.into_iter().peekable();
    let free = image.removed.iter().filter(|removed| {
        while let Some((_, end)) = taken.next_if(|&(start, _)| start < removed.end()) {
            reach = reach.max(end);
        }
        reach <= removed.address
    });
    free.filter_map(|r| patch(image, r.address, image.code_at(r.address, r.len.into())?)).collect()
}

/// Returns the patches that redirect a function's direct calls of itself to its thunk, which saves a jump
/// each. `emitted.patches` must be sorted. Calls that another patch overwrites, that a hook relocates, or
/// that do not reach the thunk, are left as they are.
pub(crate) fn recursions(
    image: &Image,
    flow: &Flow,
    hooks: &[Hook],
    emitted: &Emitted,
    copies: &Copies,
) -> Vec<Patch> {
    let is_overwritten = |b: &Branch| {
        let after = emitted.patches.partition_point(|p| p.address < b.end());
        let last = after.checked_sub(1).map(|n| &emitted.patches[n]);
        last.is_some_and(|p| b.site < p.address + u64::from(p.len))
    };
    let mut patches = Vec::new();
    for ((hook, record), number) in hooks.iter().zip(&emitted.records).zip(0_u32..) {
        let i = hook.function;
        let facts = &flow.functions[i];
        let is_other = matches!(hook.tactic, Tactic::CallSites | Tactic::Frida | Tactic::Sled);
        if !facts.recursive || facts.undecodable || is_other || copies.unit_with(image, i).is_some() {
            continue;
        }
        let thunk = emitted.code.address(record.thunk as usize);
        let is_own = |b: &&Branch| b.function as usize == i && b.kind == BranchKind::Call && b.width == 4;
        let calls = flow.branches_into(i, image.functions[i].address + 1).iter().filter(is_own);
        for b in calls.filter(|b| !relocates(hooks, b.site) && !is_overwritten(b)) {
            let displacement = near(b.end(), thunk);
            let redirected = displacement.and_then(|bytes| patch(image, b.end() - 4, &bytes));
            patches.extend(redirected.map(|patch| Patch { displacement: 1, hook: number + 1, ..patch }));
        }
    }
    patches
}

impl Layout<'_, '_> {
    /// Returns the patches of a hook. `at` is the offset that the function's jump leads to, and `body` the
    /// offset of its body. Returns `None` if a branch cannot be redirected to its new target, or does not reach it.
    pub(super) fn patches(
        &self,
        hook: &Hook,
        at: usize,
        body: usize,
        moved: &Relocated,
    ) -> Option<Vec<Patch>> {
        let thunk = self.address(at);
        let mut patches = Vec::with_capacity(2);
        match (hook.tactic, hook.cave) {
            (Tactic::CallSites, _) => {}
            (Tactic::Frida, _) => patches.extend(self.by_frida(hook, thunk)?),
            (Tactic::Sled, _) => patches.push(self.patch(hook.at, &hook.sled?.bytes(hook.at)?)?),
            (_, Some(cave)) => {
                patches.push(self.patch(hook.at, &[0xeb, short(hook.at + 2, cave)?])?);
                patches.push(self.jump_patch(cave, thunk)?);
            }
            (_, None) => patches.push(self.jump_patch(hook.at, thunk)?),
        }
        if moved.call_jump.is_some() {
            patches.push(self.patch(hook.call?, &CALL_R11)?);
        }
        for &Retarget { branch, offset, cave, .. } in &hook.retargets {
            // Of a copied function, only the copy runs.
            if self.moved_calls.contains_key(&branch.site) || self.is_copied(branch.function as usize) {
                continue;
            }
            let target = match hook.tactic {
                Tactic::CallSites => thunk,
                _ => self.address(body + moved.offset_of(offset as u32)? as usize),
            };
            match cave {
                Some(cave) => {
                    patches.push(self.patch(branch.end() - 1, &[short(branch.end(), cave)?])?);
                    patches.push(self.jump_patch(cave, target)?);
                }
                None => {
                    patches.push(self.arena_patch(branch.end() - 4, &near(branch.end(), target)?, 0)?);
                }
            }
        }
        Some(patches)
    }

    /// Returns the jump from the relocated instructions, which are at offset `body`, to the call that is
    /// still made at its original address. Without it, they emulate the call.
    pub(super) fn call_jump(&self, hook: &Hook, body: usize, moved: &Relocated) -> Option<CallJump> {
        let at = body + moved.call_jump? as usize;
        let displacement = near(self.address(at + 4), hook.call?)?;
        Some(CallJump { at: at as u32, displacement: u32::from_le_bytes(displacement) })
    }

    /// Returns the bytes that gum writes: the jump, and nops over the rest of the overwritten
    /// instructions, in as many records as necessary.
    fn by_frida(&self, hook: &Hook, thunk: u64) -> Option<Vec<Patch>> {
        const NOP: u8 = 0x90;
        let mut bytes = near_jump(hook.at, thunk)?.to_vec();
        bytes.resize(hook.relocated as usize, NOP);
        let longest = size_of_val(&Patch::default().replacement);
        let parts = bytes.chunks(longest).enumerate().map(|(n, part)| {
            let by = if n == 0 { Maker::Frida } else { Maker::BehindFrida };
            let patch = self.patch(hook.at + (n * longest) as u64, part)?;
            Some(Patch { by: by.code(), ..patch })
        });
        parts.collect()
    }

    /// Makes a patch of a near jump. Returns `None` if the jump does not reach its target.
    pub(super) fn jump_patch(&self, from: u64, to: u64) -> Option<Patch> {
        self.arena_patch(from, &near_jump(from, to)?, 1)
    }

    /// Makes the patch of a jump that leads to a copy: a near jump, or a short one to a near one.
    pub(super) fn redirect(&self, from: u64, jump: &[u8]) -> Option<Patch> {
        if jump.len() as u64 == JUMP { self.arena_patch(from, jump, 1) } else { self.patch(from, jump) }
    }

    /// Makes a patch whose replacement has a displacement to the arena at this offset.
    pub(super) fn arena_patch(&self, address: u64, replacement: &[u8], displacement: u8) -> Option<Patch> {
        Some(Patch { displacement: displacement + 1, ..self.patch(address, replacement)? })
    }

    /// Makes a patch. See [`patch`].
    pub(super) fn patch(&self, address: u64, replacement: &[u8]) -> Option<Patch> {
        patch(self.input.image, address, replacement)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::plan::Plan;
    use crate::testing::{TEXT, image, patch, plan_of};
    use gprofinject_image::ElfType;

    /// push rbx; mov rbx, rdi
    const BEFORE: [u8; 4] = [0x53, 0x48, 0x89, 0xfb];

    /// Returns the plan for a function that calls itself after `before`, and the address of that call's
    /// displacement.
    fn recursive(before: &[u8]) -> (Plan, u64) {
        let end = before.len() as i32 + 5;
        // pop rbx; ret
        let code = [before, &[0xe8], &(-end).to_le_bytes(), &[0x5b, 0xc3]].concat();
        let plan = plan_of(&image(ElfType::Dyn, TEXT, &code, &[code.len()]), None);
        (plan, TEXT + end as u64 - 4)
    }

    #[test]
    fn calls_of_itself_lead_to_the_thunk() {
        let (plan, displacement) = recursive(&[&BEFORE[..], &BEFORE].concat());
        let written = patch(&plan, displacement);
        let distance = i64::from(i32::from_le_bytes(written.try_into().unwrap()));
        let thunk = plan.emitted.code.address(plan.records[0].thunk as usize);
        assert_eq!((displacement + 4).wrapping_add(distance as u64), thunk);
        assert_eq!(plan.patches().len(), 2);
        assert!(plan.patches().is_sorted_by_key(|p| p.address));
    }

    #[test]
    fn what_a_hook_moves_stays_its_own() {
        let (plan, displacement) = recursive(&BEFORE);
        assert!(plan.patches().iter().all(|p| p.address != displacement));
    }
}
