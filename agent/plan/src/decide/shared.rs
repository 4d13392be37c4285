//! Hooks whose patches others rely on. The patches of such a hook stay in place while its function is switched off, and
//! only its thunk stops counting.
//!
//! Everything is decided for all hooks together: that one function's jump frees bytes for another one's cave, that a
//! function slides into the next one's patch, or that a relocated branch leads to the relocated instructions of another
//! function. If the original bytes of the one came back, the other would run into them.

use crate::decide::hook::Hook;
use crate::decide::verdict::Tactic;

/// Returns for each hook whether others rely on its patches, or its thunk is reached without them. The hooks are sorted by
/// address.
pub(crate) fn of_all(hooks: &[Hook]) -> Vec<bool> {
    let mut shared: Vec<bool> = hooks.iter().map(|hook| hook.sled.is_some() || hook.slid_into).collect();
    // The hook that relocates the instruction at an address.
    let owner = |at: u64| {
        let before = hooks.partition_point(|hook| hook.at <= at).checked_sub(1)?;
        (at < hooks[before].at + hooks[before].relocated).then_some(before)
    };
    for (n, hook) in hooks.iter().enumerate() {
        let by_sites = hook.tactic == Tactic::CallSites;
        for retarget in hook.retargets.iter().filter(|retarget| retarget.moved || by_sites) {
            // The original of a relocated branch leads into bytes that stay overwritten, or past the counting.
            if let Some(other) = owner(retarget.branch.site).filter(|&other| other != n) {
                shared[other] = true;
                shared[n] |= by_sites;
            }
        }
        for other in hook.spans().filter_map(|(start, _)| owner(start)).filter(|&other| other != n) {
            shared[other] = true;
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use crate::decide::verdict::Tactic;
    use crate::plan::Plan;
    use crate::testing::{TEXT, image, plan_of, tactics};
    use gprofinject_abi::plan::SHARED;
    use gprofinject_image::ElfType;

    /// push rbp; mov rbp, rsp; push r12; nop (4 bytes); jmp over the next; pop r12; pop rbp; ret
    const PLAIN: [u8; 16] =
        [0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x0f, 0x1f, 0x40, 0, 0xeb, 0, 0x41, 0x5c, 0x5d, 0xc3];

    fn shared(plan: &Plan) -> Vec<bool> {
        plan.records.iter().map(|record| record.flags & SHARED != 0).collect()
    }

    #[test]
    fn a_jump_alone_is_nobody_elses() {
        let code = [PLAIN, PLAIN].concat();
        let plan = plan_of(&image(ElfType::Dyn, TEXT, &code, &[16, 16]), None);
        assert_eq!(shared(&plan), [false, false]);
        let owners: Vec<u32> = plan.patches().iter().map(|patch| patch.hook).collect();
        assert_eq!(owners, [1, 2]);
    }

    /// The short function's cave lies in the bytes that the relocation of the long one frees.
    #[test]
    fn a_function_with_anothers_cave_is_shared() {
        let code = [&PLAIN[..], &[0x31, 0xc0, 0xc3], &PLAIN].concat();
        let plan = plan_of(&image(ElfType::Dyn, TEXT, &code, &[16, 3, 16]), None);
        assert_eq!(tactics(&plan)[1], Some(Tactic::ShortJump));
        let cave =
            plan.patches().iter().find(|patch| patch.hook == 2 && patch.len == 5).map(|cave| cave.address);
        let cave = cave.unwrap_or_default();
        let expected = [cave < TEXT + 16, false, cave >= TEXT + 19];
        assert!(expected[0] != expected[2], "{cave:#x}");
        assert_eq!(shared(&plan), expected);
    }

    /// A `ret` without padding before a function with a jump: it slides into that.
    #[test]
    fn a_sled_and_what_it_leads_to_are_shared() {
        let code = [&[0xc3][..], &PLAIN].concat();
        let plan = plan_of(&image(ElfType::Dyn, TEXT, &code, &[1, 16]), None);
        let sled = tactics(&plan)[0] == Some(Tactic::Sled);
        assert!(sled, "{:?}", tactics(&plan));
        assert_eq!(shared(&plan), [true, true]);
    }
}
