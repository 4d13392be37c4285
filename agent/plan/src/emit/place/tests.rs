#![allow(clippy::unwrap_used)]

use crate::decide::verdict::{Reason, Tactic, Verdict};
use crate::plan::Plan;
use crate::testing::{image, plan_at, plan_of};
use gprofinject_image::{ElfType, Image, Segment};

/// push rbx; mov rbx, rdi; lea rax, [rdi+1]; pop rbx; ret; nop
const FUNCTION: [u8; 16] =
    [0x53, 0x48, 0x89, 0xfb, 0x48, 0x8d, 0x47, 1, 0x5b, 0xc3, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90];
const NEAR: u64 = 0x40_1000;
const FAR: u64 = 0x3_0000_0000;

/// Returns a program with so many functions at `NEAR` and at `FAR`.
fn apart<'d>(kind: ElfType, code: &'d [u8], near: usize, far: usize) -> Image<'d> {
    let at = |base: u64, count: usize| {
        let code = &code[..count * FUNCTION.len()];
        image(kind, base, code, &vec![FUNCTION.len(); count])
    };
    let (mut all, mut more) = (at(NEAR, near), at(FAR, far));
    all.details_mut().code_pointers.extend(&more.details().code_pointers);
    all.hi = more.hi;
    all.code.extend(more.code);
    all.segments.extend(more.segments);
    all.code_ranges.extend(more.code_ranges);
    all.functions.append(&mut more.functions);
    all
}

/// Checks that each near jump of the plan leads into the arena, and returns the verdicts.
fn checked(image: &Image, plan: Plan) -> Vec<Verdict> {
    for patch in plan.patches() {
        assert_eq!(patch.replacement[0], 0xe9);
        let distance = i32::from_le_bytes(*patch.replacement[1..].first_chunk().unwrap());
        let target = patch.address.wrapping_add(5).wrapping_add_signed(distance.into());
        assert!(target.wrapping_sub(plan.arena) < plan.arena_len, "{target:x} from {:x}", patch.address);
    }
    let of_segments =
        |s: &Segment| plan.arena < s.address + s.memory && plan.arena + plan.arena_len > s.address;
    assert!(image.elf_type == ElfType::Dyn || !image.segments.iter().any(of_segments));
    plan.verdicts.into_owned()
}

const HOOKED: Verdict = Verdict::Hooked(Tactic::Jump);
const REFUSED: Verdict = Verdict::Refused(Reason::Far);

#[test]
fn the_arena_is_near_most_functions_and_the_others_are_refused() {
    let code = FUNCTION.repeat(3);
    for kind in [ElfType::Exec, ElfType::Dyn] {
        let more_near = apart(kind, &code, 2, 1);
        assert_eq!(checked(&more_near, plan_of(&more_near, None)), [HOOKED, HOOKED, REFUSED]);
        let more_far = apart(kind, &code, 1, 2);
        assert_eq!(checked(&more_far, plan_of(&more_far, None)), [REFUSED, HOOKED, HOOKED]);
    }
}

#[test]
fn a_program_with_gigabytes_of_data_is_hooked_from_below() {
    let code = FUNCTION.repeat(2);
    let mut image = image(ElfType::Exec, NEAR, &code, &[16, 16]);
    image.segments[0].memory = 3 << 30;
    image.hi = NEAR + (3 << 30);
    assert_eq!(checked(&image, plan_of(&image, None)), [HOOKED, HOOKED]);
}

#[test]
fn nothing_is_hooked_from_an_arena_that_is_too_far_away() {
    let code = FUNCTION.repeat(2);
    let image = image(ElfType::Exec, NEAR, &code, &[16, 16]);
    for at in [FAR, 0x8080_0000, 0x7fff_0000_0000] {
        let plan = plan_at(&image, at);
        assert!(plan.patches().is_empty() && plan.caution.as_ref().unwrap().starts_with("2 functions are"));
        assert_eq!(checked(&image, plan), [REFUSED, REFUSED]);
    }
    assert_eq!(checked(&image, plan_at(&image, 0x8030_0000)), [HOOKED, HOOKED]);
}

#[test]
fn data_out_of_reach_of_the_arena_leaves_a_function_alone() {
    // lea rax, [rip+0x7ffff000]; ret, which the function reaches and an arena below it does not; and another function.
    let relative = [0x48, 0x8d, 0x05, 0, 0xf0, 0xff, 0x7f, 0xc3];
    let code = [&relative[..], &[0x90; 8], &FUNCTION].concat();
    let image = image(ElfType::Exec, NEAR, &code, &[16, 16]);
    let plan = plan_of(&image, None);
    assert_eq!(checked(&image, plan), [Verdict::Refused(Reason::NotRelocatable), HOOKED]);
}

#[test]
fn the_arena_is_not_where_a_segment_is() {
    let code = FUNCTION.repeat(3);
    let mut program = apart(ElfType::Exec, &code, 1, 2);
    // There is room for the arena only at the start of the gap, which the functions at its end do not reach.
    program.segments.insert(1, Segment { address: NEAR + 0x40_0000, bytes: &[], memory: FAR - 2 * NEAR });
    assert_eq!(checked(&program, plan_of(&program, None)), [HOOKED, REFUSED, REFUSED]);
}
