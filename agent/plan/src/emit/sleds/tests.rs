//! Functions that slide into each other, in small programs whose patched code is run step by step.

#![allow(clippy::unwrap_used)]
use super::*;
use crate::decide::options::{Engine, Means};
use crate::decide::sled::{LONGEST, Sled};
use crate::decide::verdict::{Earlier, Reason, Tactic, Verdict};
use crate::plan::Plan;
use crate::testing::{TEXT, image, patch, plan_of, tactics};
use gprofinject_image::{ElfType, Image};
use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use std::collections::HashMap;

/// push rbx; mov rbx, rdi; mov rax, rbx; pop rbx; ret
const NEIGHBOUR: [u8; 9] = [0x53, 0x48, 0x89, 0xfb, 0x48, 0x89, 0xd8, 0x5b, 0xc3];
const RET: [u8; 1] = [0xc3];
const XOR: [u8; 3] = [0x31, 0xc0, 0xc3];

fn pie(parts: &[&[u8]], skip: Option<usize>) -> Plan {
    let code = parts.concat();
    let sizes: Vec<usize> = parts.iter().map(|p| p.len()).collect();
    plan_of(&image(ElfType::Dyn, TEXT, &code, &sizes), skip)
}

/// Runs the patched program from `address` on until it reaches a thunk, and returns the number of that
/// thunk's function.
fn reached(plan: &Plan, image: &Image, address: u64) -> u32 {
    const TOP: u64 = 0x7fff_0000;
    // Thunks begin with one of: mov [rsp-8], rax; mov [rsp-16], r11; pop r11; mov r11, [rsp].
    const THUNKS: [&[u8]; 4] = [
        &[0x48, 0x89, 0x44, 0x24, 0xf8],
        &[0x4c, 0x89, 0x5c, 0x24, 0xf0],
        &[0x41, 0x5b],
        &[0x4c, 0x8b, 0x1c, 0x24],
    ];
    let arena = |ip: u64| ip.wrapping_sub(plan.arena) < plan.arena_len;
    let mut text = image.code[0].bytes.to_vec();
    for p in plan.patches.iter() {
        let at = (p.address - image.code[0].address) as usize;
        text[at..at + p.len as usize].copy_from_slice(&p.replacement[..p.len as usize]);
    }
    let mut stack = HashMap::from([(TOP, 0x4444_u64)]);
    let (mut ip, mut rsp, mut equal) = (address, TOP, false);
    for _ in 0..10_000 {
        if arena(ip) {
            let offset = ip.wrapping_sub(plan.arena) as usize;
            let number = plan.records.iter().position(|record| record.thunk as usize == offset);
            if let Some(number) = number {
                assert!(THUNKS.iter().any(|t| plan.emitted.code.bytes[offset..].starts_with(t)));
                assert_eq!(rsp, TOP, "the stack pointer is restored");
                return number as u32;
            }
        }
        let bytes = if arena(ip) {
            &plan.emitted.code.bytes[ip.wrapping_sub(plan.arena) as usize..]
        } else {
            &text[(ip - image.code[0].address) as usize..]
        };
        let i = Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode();
        ip = i.next_ip();
        match i.mnemonic() {
            Mnemonic::Push => {
                stack.insert(rsp - 8, rsp);
                rsp -= 8;
            }
            Mnemonic::Nop | Mnemonic::Endbr64 => {}
            Mnemonic::Lea => rsp = rsp.wrapping_add(i.memory_displacement64()),
            Mnemonic::Cmp => equal = stack.get(&rsp.wrapping_add(i.memory_displacement64())) == Some(&rsp),
            Mnemonic::Je if !equal => {}
            Mnemonic::Je | Mnemonic::Jmp => ip = i.near_branch_target(),
            other => panic!("{other:?} at {:x}", i.ip()),
        }
    }
    panic!("no thunk reached");
}

fn all_reach_their_own(plan: &Plan, image: &Image) {
    for (number, &function) in plan.function_of.iter().enumerate() {
        assert_eq!(reached(plan, image, image.functions[function as usize].address), number as u32);
    }
}

#[test]
fn a_ret_before_a_function_with_a_jump() {
    let plan = pie(&[&RET, &NEIGHBOUR], None);
    assert_eq!(tactics(&plan), [Some(Tactic::Sled), Some(Tactic::Jump)]);
    assert_eq!(patch(&plan, TEXT), [0x54]);
    let jump = patch(&plan, TEXT + 1);
    assert_eq!(jump[0], 0xe9);
    let displacement = i32::from_le_bytes(jump[1..].try_into().unwrap());
    let at = (TEXT + 6).wrapping_add_signed(displacement.into()).wrapping_sub(plan.arena) as usize;
    let code = &plan.emitted.code.bytes[at..at + code_len(1)];
    assert_eq!(
        code[..18],
        [
            0x48, 0x8d, 0x64, 0x24, 0x08, 0x48, 0x39, 0x64, 0x24, 0xf8, 0x74, 0x0a, 0x48, 0x8d, 0x64, 0x24,
            0xf8, 0xe9
        ]
    );
    assert_eq!(code[22], 0xe9);
    // No sample there is one of a function.
    let code = [RET.as_slice(), &NEIGHBOUR].concat();
    let image = image(ElfType::Dyn, TEXT, &code, &[RET.len(), NEIGHBOUR.len()]);
    assert!((0..code_len(1)).all(|n| plan.stands_for(&image, (at + n) as u32).is_none()));
}

#[test]
fn a_function_of_three_bytes() {
    let plan = pie(&[&XOR, &NEIGHBOUR], None);
    assert_eq!(patch(&plan, TEXT), [0x54, 0x66, 0x90]);
    assert_eq!(patch(&plan, TEXT + 3)[0], 0xe9);
}

#[test]
fn a_row_with_others_between_and_in_an_executable_at_a_fixed_address() {
    let parts: [&[u8]; 8] = [&RET, &RET, &XOR, &RET, &XOR, &XOR, &RET, &NEIGHBOUR];
    let code = parts.concat();
    let sizes: Vec<usize> = parts.iter().map(|p| p.len()).collect();
    for (kind, base) in [(ElfType::Dyn, TEXT), (ElfType::Exec, 0x40_1000)] {
        let image = image(kind, base, &code, &sizes);
        let plan = plan_of(&image, None);
        assert_eq!(plan.records.len(), 8);
        let sleds = tactics(&plan).iter().filter(|&&t| t == Some(Tactic::Sled)).count();
        assert_eq!(sleds, 7);
        all_reach_their_own(&plan, &image);
    }
}

#[test]
fn four_rets() {
    let plan = pie(&[&RET, &RET, &RET, &RET, &NEIGHBOUR], None);
    let bytes: Vec<Vec<u8>> = (0..4).map(|i| patch(&plan, TEXT + i)).collect();
    assert_eq!(bytes, [[0x54]; 4]);
}

#[test]
fn through_an_endbr64() {
    let neighbour = [&[0xf3, 0x0f, 0x1e, 0xfa][..], &NEIGHBOUR].concat();
    let code = [&RET[..], &neighbour].concat();
    let image = image(ElfType::Dyn, TEXT, &code, &[1, neighbour.len()]);
    let plan = plan_of(&image, None);
    assert_eq!(plan.patches.iter().map(|p| p.address).collect::<Vec<_>>(), [TEXT, TEXT + 5]);
    all_reach_their_own(&plan, &image);
}

#[test]
fn over_the_gap_between_two_sections() {
    let code = [&RET[..], &RET, &[0; 2], &NEIGHBOUR].concat();
    let mut image = image(ElfType::Dyn, TEXT, &code, &[1, 1, 2, 9]);
    image.functions.remove(2);
    image.details_mut().code_pointers.remove(2);
    image.code_ranges = [TEXT..TEXT + 2, TEXT + 4..TEXT + 13].to_vec();
    let plan = plan_of(&image, None);
    assert_eq!(patch(&plan, TEXT + 1), [0x54, 0x66, 0x90]);
    all_reach_their_own(&plan, &image);
    // Bytes that something may need must stay as they are.
    image.code_ranges = std::iter::once(TEXT..TEXT + 13).collect();
    assert_eq!(tactics(&plan_of(&image, None)), [None, None, Some(Tactic::Jump)]);
}

#[test]
fn a_hop() {
    // push rbx; call [rdi]; pop rbx; ret, with the return address at offset 3.
    let calls = [0x53, 0xff, 0x17, 0x5b, 0xc3];
    let parts: [&[u8]; 4] = [&RET, &calls, &RET, &NEIGHBOUR];
    let (code, sizes) = (parts.concat(), parts.map(<[u8]>::len));
    let image = image(ElfType::Dyn, TEXT, &code, &sizes);
    let plan = plan_of(&image, None);
    // It hops to the start of the chain, which becomes longer by it.
    assert_eq!(patch(&plan, TEXT + 1), [0x54, 0xeb, 0x02]);
    assert_eq!(plan.records.len(), 4);
    all_reach_their_own(&plan, &image);
}

#[test]
fn a_neighbour_whose_call_sites_were_patched_comes_along() {
    // Only the next function calls the second `ret`: push rbx; mov rbx, rdi; nop; call; pop rbx; ret.
    let calls = [0x53, 0x48, 0x89, 0xfb, 0x0f, 0x1f, 0x40, 0x00, 0xe8, 0xf2, 0xff, 0xff, 0xff, 0x5b, 0xc3];
    let parts: [&[u8]; 3] = [&RET, &RET, &calls];
    let (code, sizes) = (parts.concat(), parts.map(<[u8]>::len));
    let mut image = image(ElfType::Dyn, TEXT, &code, &sizes);
    image.details_mut().code_pointers = vec![TEXT, TEXT + 2];
    let plan = plan_of(&image, None);
    assert_eq!(tactics(&plan), [Some(Tactic::Sled), Some(Tactic::Sled), Some(Tactic::Jump)]);
    all_reach_their_own(&plan, &image);
    // If it need not become a sled, it is hooked at its call sites.
    image.details_mut().code_pointers = vec![TEXT + 2];
    assert_eq!(tactics(&plan_of(&image, Some(0)))[1], Some(Tactic::CallSites));
}

#[test]
fn without_a_hooked_neighbour_there_is_none() {
    let plan = pie(&[&RET, &NEIGHBOUR, &RET], Some(1));
    assert_eq!(tactics(&plan), [None; 3]);
    assert_eq!(plan.verdicts[0], Verdict::Refused(Reason::NoRoom));
    assert!(plan.patches.is_empty());
}

#[test]
fn a_neighbour_given_up_takes_its_sleds_along() {
    let code = [&RET[..], &RET, &NEIGHBOUR].concat();
    let image = image(ElfType::Dyn, TEXT, &code, &[1, 1, 9]);
    let flow = crate::flow::facts::Flow::of(&image, true);
    let decide = |earlier| {
        crate::decide::decisions::decide(
            &image,
            &flow,
            &|_| None,
            Means { engine: Engine::Builtin, shadow_stack: false },
            &earlier,
        )
    };
    let decisions = decide(Earlier::default());
    assert_eq!(chains(&decisions.hooks), [Chain { head: 2, sleds: vec![1, 0] }]);
    let decisions =
        decide(Earlier { failed: HashMap::from([(2, Reason::NotRelocatable)]), ..Earlier::default() });
    assert!(decisions.hooks.is_empty());
    let refused = [Reason::NoRoom, Reason::NoRoom, Reason::NotRelocatable].map(Err);
    assert_eq!(decisions.verdicts, refused);
}

#[test]
fn a_neighbour_given_up_takes_its_caves_along() {
    // The jump cannot be relocated, although the bytes after it seem to be dead.
    const STUCK: [u8; 15] =
        [0x66, 0xeb, 0, 0x48, 0x89, 0xf8, 0x48, 0x89, 0xf8, 0x48, 0x89, 0xf8, 0x48, 0x89, 0xf8];
    let movable = [&[0x90][..], &STUCK[1..]].concat();
    assert_eq!(pie(&[&XOR, &movable], None).verdicts[0], Verdict::Hooked(Tactic::ShortJump));
    let plan = pie(&[&XOR, &STUCK], None);
    assert_eq!(*plan.verdicts, [Reason::NoRoom, Reason::NotRelocatable].map(Verdict::Refused));
    assert!(plan.patches.is_empty());
}

#[test]
fn a_row_has_an_end() {
    let mut parts = vec![&RET[..]; 140];
    parts.push(&NEIGHBOUR);
    let (code, sizes) = (parts.concat(), parts.iter().map(|p| p.len()).collect::<Vec<_>>());
    let image = image(ElfType::Dyn, TEXT, &code, &sizes);
    let plan = plan_of(&image, None);
    assert_eq!(tactics(&plan)[..12], [None; 12]);
    assert_eq!(plan.records.len(), 129);
    all_reach_their_own(&plan, &image);
}

#[test]
fn nops_fill_a_patch() {
    let sled = |len| Sled { next: 0, depth: 1, len, hop: None }.bytes(0).unwrap();
    for len in 1..=LONGEST {
        let bytes = sled(len);
        assert_eq!(bytes.len() as u64, len);
        let mut decoded = Decoder::with_ip(64, &bytes[1..], 0, DecoderOptions::NONE);
        assert!(decoded.iter().all(|i| i.mnemonic() == Mnemonic::Nop));
    }
}
