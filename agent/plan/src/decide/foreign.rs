//! Branches of other functions into the bytes that a hook overwrites, beyond the function's first
//! instruction.
//!
//! Hand-written assembly has functions that differ in their first instruction and share the rest:
//!
//! ```text
//! wide:    mov  al, 2          narrow:  mov  al, 4
//! common:  ...                          jmp  common
//! ```
//!
//! Such a branch is redirected to the relocated copy of its target, like a branch of the function itself.
//! It does not enter a function at its start, so it is not a call. The function that contains the branch
//! may have a hook of its own, which is decided later or by another thread. Therefore [`settle`] checks
//! each branch only after all functions have been decided.

use crate::decide::hook::Hook;
use crate::decide::start::Start;
use crate::flow::branch::Branch;
use crate::flow::facts::Flow;
use crate::x86::jump::{JUMP, SHORT_JUMP};
use gprofinject_image::Image;

/// Marks the branches that another function's hook relocates. Returns the functions whose hooks cannot stay as they are,
/// because such a branch cannot be redirected after all. The hooks must be sorted by address. If `allowed`
/// is false, no branch of another function can be redirected.
pub(crate) fn settle(image: &Image, flow: &Flow, hooks: &mut [Hook], allowed: bool) -> Vec<usize> {
    let mut astray = Vec::new();
    let mut moved = Vec::new();
    for (n, hook) in hooks.iter().enumerate() {
        for (r, retarget) in hook.retargets.iter().enumerate() {
            let branch = retarget.branch;
            let from = image.owner(branch.function as usize);
            if from == hook.function || hook.relocated == 0 {
                continue;
            }
            let fate = if allowed { fate(image, flow, hooks, branch) } else { None };
            match fate {
                Some(Fate::Moved) => moved.push((n, r)),
                Some(Fate::Stays) if branch.width == 4 || retarget.cave.is_some() => {}
                _ => astray.push(hook.function),
            }
        }
    }
    for (n, r) in moved {
        hooks[n].retargets[r].moved = true;
    }
    astray.dedup();
    astray
}

/// What happens to a branch in the instructions of another function.
enum Fate {
    /// It stays where it is.
    Stays,
    /// It runs only where it is relocated to.
    Moved,
}

/// Returns what happens to a branch, or `None` if it is overwritten, or runs both at its original address
/// and at the relocated one.
fn fate(image: &Image, flow: &Flow, hooks: &[Hook], branch: Branch) -> Option<Fate> {
    let after = hooks.partition_point(|h| h.at < branch.end());
    let Some(hook) = after.checked_sub(1).map(|n| &hooks[n]) else { return Some(Fate::Stays) };
    let relocated = hook.at + hook.relocated;
    let touched = hook.at + hook.relocated.max(if hook.relocated > 0 { JUMP } else { 0 });
    if branch.site >= touched {
        return Some(Fate::Stays);
    }
    if branch.site < hook.at || branch.end() > relocated {
        return None;
    }
    let start = Start::of(image, flow, hook.function)?;
    let patch = match (hook.sled, hook.cave) {
        (Some(sled), _) => sled.len,
        (None, Some(_)) => SHORT_JUMP,
        (None, None) => JUMP,
    };
    // Branches to the overwritten bytes now lead to the copies. Branches to later bytes still find the
    // original.
    let live = start.entered(patch, branch.site - hook.at + 1, hook.relocated);
    (!live).then_some(Fate::Moved)
}

#[cfg(test)]
mod tests {
    use crate::decide::verdict::Tactic;
    use crate::testing::{TEXT, image, patch, plan_of, tactics};
    use gprofinject_image::ElfType;

    /// mov al, 2; mov rcx, rdi; mov rax, rdi; ret
    const COMMON: &[u8] = &[0xb0, 2, 0x48, 0x89, 0xf9, 0x48, 0x89, 0xf8, 0xc3];

    #[test]
    fn a_jump_behind_the_first_instruction_is_redirected_to_its_copy() {
        // The branch stays at its address: mov rax, rdi three times; jmp TEXT + 2.
        let far: &[u8] =
            &[0x48, 0x89, 0xf8, 0x48, 0x89, 0xf8, 0x48, 0x89, 0xf8, 0xe9, 0xe7, 0xff, 0xff, 0xff];
        let code = [COMMON, &[0xcc; 4], far].concat();
        let program = image(ElfType::Dyn, TEXT, &code, &[13, far.len()]);
        let plan = plan_of(&program, None);
        assert_eq!(tactics(&plan), [Some(Tactic::Jump), Some(Tactic::Jump)]);
        let displacement = patch(&plan, TEXT + 13 + 10);
        let displacement = i32::from_le_bytes(displacement.try_into().expect("four bytes"));
        let target = (TEXT + 27).wrapping_add_signed(displacement.into());
        let at = target.wrapping_sub(plan.arena) as usize;
        assert_eq!(plan.emitted.code.bytes[at..at + 3], COMMON[2..5], "the second instruction");
    }

    #[test]
    fn a_short_jump_that_no_cave_redirects_stays_behind_a_shorter_patch() {
        // mov rax, rdi; then what the other function runs as well: cmp rdx, 64; mov rcx, rdi; ret
        let code: &[u8] = &[0x48, 0x89, 0xf8, 0x48, 0x83, 0xfa, 0x40, 0x48, 0x89, 0xf9, 0xc3];
        // mov rax, rdi; add rax, rdx; jmp TEXT + 3. The first two instructions are relocated, the jump stays.
        let other: &[u8] = &[0x48, 0x89, 0xf8, 0x48, 0x01, 0xd0, 0xeb, 0xf0, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];
        let both = [code, other].concat();
        let program = image(ElfType::Dyn, TEXT, &both, &[code.len(), other.len()]);
        let plan = plan_of(&program, None);
        assert_eq!(tactics(&plan), [Some(Tactic::ShortJump), Some(Tactic::Jump)]);
        assert!(plan.patches.iter().all(|p| p.address != TEXT + 17 && p.address != TEXT + 18));
    }

    #[test]
    fn a_jump_that_is_relocated_itself_is_redirected_as_well() {
        // mov al, 4; jmp TEXT + 2, near and short; and, beyond the overwritten bytes, short with no cave
        // nearby.
        let near: &[u8] = &[0xb0, 4, 0xe9, 0xf2, 0xff, 0xff, 0xff];
        let short: &[u8] = &[0xb0, 4, 0xeb, 0xf5, 0x90];
        for jump in [near, short] {
            let code = [COMMON, jump, &[0xcc; 8]].concat();
            let program = image(ElfType::Dyn, TEXT, &code, &[COMMON.len(), jump.len() + 8]);
            let plan = plan_of(&program, None);
            assert_eq!(tactics(&plan), [Some(Tactic::Jump), Some(Tactic::Jump)], "{jump:x?}");
            assert!(plan.patches.iter().all(|p| p.address != TEXT + 12 && p.address != TEXT + 13));
        }
    }
}
