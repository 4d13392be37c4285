//! Calls near the starts of functions, in small programs.

#![allow(clippy::unwrap_used)]
use crate::decide::options::Hooks;
use crate::decide::verdict::{Reason, Tactic, Verdict};
use crate::plan::Plan;
use crate::testing::{TEXT, image, patch, plan_of, plan_under_shadow_stack, tactics};
use crate::x86::relocate::call::CALL_R11;
use gprofinject_image::{ElfType, Image};

/// Distance from one function to the next in bytes, with room for a jump between them.
const PITCH: usize = 32;
/// xor eax,eax; ret
const LEAF: &[u8] = &[0x31, 0xc0, 0xc3];

/// Code of function `n`: `before`, a call of function `callee`, and `after`.
fn caller(n: usize, before: &[u8], callee: usize, after: &[u8]) -> Vec<u8> {
    let end = n * PITCH + before.len() + 5;
    let distance = (callee * PITCH) as i32 - end as i32;
    [before, &[0xe8], &distance.to_le_bytes(), after].concat()
}

/// Plans for a program of these functions. The addresses of the first `taken` ones are taken.
fn plan(functions: &[&[u8]], taken: usize) -> Plan {
    plan_by(functions, taken, |image| plan_of(image, None))
}

fn plan_by(functions: &[&[u8]], taken: usize, by: impl Fn(&Image) -> Plan) -> Plan {
    let mut code = vec![0xcc; PITCH * functions.len()];
    for (function, place) in functions.iter().zip(code.chunks_mut(PITCH)) {
        place[..function.len()].copy_from_slice(function);
    }
    let mut image = image(ElfType::Dyn, TEXT, &code, &vec![PITCH; functions.len()]);
    for (f, function) in image.functions.iter_mut().zip(functions) {
        f.size = function.len() as u64;
    }
    image.details_mut().code_pointers.truncate(taken);
    by(&image)
}

/// Returns the offset of the call that stays in its place, from the start of the only function with such a
/// call.
fn site(plan: &Plan) -> Option<u64> {
    assert!(tactics(plan).iter().all(Option::is_some));
    let written = plan.patches.iter().find(|p| p.replacement[..p.len as usize] == CALL_R11);
    assert_eq!(usize::from(written.is_some()), plan.emitted.call_jumps.len());
    written.map(|p| (p.address - TEXT) % PITCH as u64)
}

#[test]
fn calls_near_the_start_are_made_in_their_places() {
    let push_call = caller(0, &[0x50], 1, &[0x59, 0xc3]);
    let made = plan(&[&push_call, LEAF], 1);
    assert_eq!(site(&made), Some(3));
    assert_eq!((tactics(&made)[0], patch(&made, TEXT)[0]), (Some(Tactic::ShortJump), 0xeb));
    // No thread ever executes the bytes between the patch and the call.
    assert_eq!(patch(&made, TEXT).len(), 2);
    assert!(made.is_hook_point(TEXT) && !made.is_hook_point(TEXT + 3));
    assert_eq!(site(&plan(&[&caller(0, &[], 1, &[0xc3]), LEAF], 1)), Some(2));
}

#[test]
fn the_moved_instructions_lead_to_the_call_while_the_patches_are_there() {
    let plan = plan(&[&caller(0, &[0x50], 1, &[0x59, 0xc3]), LEAF], 1);
    let [jump] = plan.emitted.call_jumps[..] else { panic!() };
    let body = plan.records[0].body;
    // push rax; lea r11,[leaf]; jmp
    assert_eq!(jump.at, body + 1 + 7 + 1);
    let code = &plan.emitted.code;
    assert_eq!(code.bytes[body as usize + 8..][..5], [0xe9, 0, 0, 0, 0]);
    let end = code.address(jump.at as usize + 4);
    assert_eq!(end.wrapping_add(jump.displacement as i32 as u64), TEXT + 3);
    // A thread that is at the call continues in the copy, before the call.
    assert_eq!(plan.moved(TEXT + 1), Some(body + 1));
}

#[test]
fn calls_that_something_leads_to_are_emulated() {
    // push rax; call; pop rax; jmp to the call
    assert_eq!(site(&plan(&[&caller(0, &[0x50], 1, &[0x58, 0xeb, 0xf8]), LEAF], 1)), None);
    // To the start: mov r11d,edi; jmp, or without r11.
    assert_eq!(site(&plan(&[&caller(0, &[0x50], 1, &[0x41, 0x89, 0xfb, 0xeb, 0xf5]), LEAF], 1)), None);
    assert_eq!(site(&plan(&[&caller(0, &[0x50], 1, &[0x89, 0xfb, 0xeb, 0xf6]), LEAF], 1)), Some(3));
}

#[test]
fn calls_with_a_value_in_r11_are_emulated() {
    // mov eax,r11d; ret
    let takes = [0x44, 0x89, 0xd8, 0xc3];
    let push_call = caller(0, &[0x50], 1, &[0x59, 0xc3]);
    assert_eq!(site(&plan(&[&push_call, &takes], 1)), None);
    // mov r11d,1; call; mov eax,r11d; ret
    let keeps = caller(2, &[0x41, 0xbb, 1, 0, 0, 0], 0, &takes);
    assert_eq!(site(&plan(&[&push_call, LEAF, &keeps], 0)), None);
    let changes = [0x41, 0x89, 0xfb, 0xc3]; // mov r11d,edi; ret
    assert_eq!(site(&plan(&[&push_call, &changes, &keeps], 0)), Some(3));
}

#[test]
fn with_a_shadow_stack_no_call_is_moved_and_no_exit_is_hooked() {
    let push_call = caller(0, &[0x50], 1, &[0x59, 0xc3]);
    // A function that calls through a register needs a cell, and so an exit.
    let indirect = [0x50, 0x90, 0x90, 0x90, 0xff, 0xd0, 0x59, 0xc3];
    let functions: [&[u8]; 3] = [&push_call, LEAF, &indirect];
    let exits = |plan: &Plan| plan.records.iter().filter(|record| record.exit != 0).count();
    let without = plan(&functions, 3);
    assert_eq!((without.hooks, without.downgrade.is_some()), (Hooks::Both, false));
    assert!(exits(&without) > 0 && tactics(&without).iter().all(Option::is_some));
    let with = plan_by(&functions, 3, plan_under_shadow_stack);
    assert_eq!((with.hooks, exits(&with), with.emitted.call_jumps.len()), (Hooks::Entry, 0, 0));
    assert!(with.downgrade.as_ref().is_some_and(|why| why.contains("shadow stack")));
    let refused = Verdict::Refused(Reason::ShadowStack);
    // The short jump overwrites what is before the call.
    let hooked = [refused, Verdict::Hooked(Tactic::JumpIntoPadding), Verdict::Hooked(Tactic::ShortJump)];
    assert_eq!(with.verdicts.to_vec(), hooked);
    // If all its calls are known, the function can be hooked there.
    let calls_it = caller(2, &[0x90; 5], 0, &[0xc3]);
    let known = plan_by(&[&push_call, LEAF, &calls_it], 0, plan_under_shadow_stack);
    assert_eq!(tactics(&known)[0], Some(Tactic::CallSites));
}
