#![allow(clippy::unwrap_used)]
use crate::decide::options::{Engine, Hooks, Options};
use crate::decide::verdict::{Reason, Tactic, Verdict};
use crate::plan::Plan;
use crate::testing::{TEXT, image, patch};
use crate::x86::relocate::instructions::tests::listing;
use crate::x86::template::kind::{Measured, Role};
use gprofinject_image::{ElfType, Function};

const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// cmp rax, -4096; ret
const AFTER: [u8; 7] = [0x48, 0x3d, 0, 0xf0, 0xff, 0xff, 0xc3];

/// Returns the plan for a standalone program with one function, which `code` has.
fn plan(code: &[u8], counted: bool) -> Plan {
    let image = image(ElfType::Dyn, TEXT, code, &[code.len()]);
    let all: &dyn Fn(&Function) -> bool = &|_| true;
    let options = Options {
        hooks: Hooks::Both,
        engine: Engine::Builtin,
        selected: &|_| true,
        min_size: 0,
        insist: false,
        shadow_stack: false,
        counted: counted.then_some(all),
        clock: false,
        outermost: false,
        role: Role::Standalone,
        measured: Measured::None,
        told: None,
        arena: None,
        words: 0,
    };
    Plan::new(&image, &options)
}

/// Returns the arena's code to which the patch at an address leads.
fn code_behind(plan: &Plan, address: u64) -> Vec<String> {
    let bytes = patch(plan, address);
    assert_eq!((bytes.len(), bytes[0]), (5, 0xe9));
    let to = (address + 5).wrapping_add(i32::from_le_bytes(*bytes[1..].first_chunk().unwrap()) as u64);
    let offset = to.wrapping_sub(plan.arena) as usize;
    listing(&plan.emitted.code.bytes[offset..offset + 64], 0)
}

#[test]
fn a_jump_replaces_the_system_call_and_what_follows() {
    // mov eax, 57; syscall; ..
    let code = [&[0xb8, 57, 0, 0, 0][..], &SYSCALL, &AFTER].concat();
    let plan = plan(&code, false);
    assert_eq!((plan.redirected.as_slice(), plan.unredirected.as_slice()), (&[TEXT + 5][..], &[][..]));
    assert_eq!(*plan.verdicts, [Verdict::Hooked(Tactic::Jump)], "the hook takes the first instruction");
    let piece = code_behind(&plan, TEXT + 5);
    assert!(piece[0].starts_with("lea rcx,[") && piece[1].starts_with("jmp qword ptr ["), "{piece:?}");
    assert_eq!(piece[2..4], ["syscall", "cmp rax,0xFFFFFFFFFFFFF000"]);
    assert!(piece[4].starts_with("jmp 0x"), "{piece:?}");
    // A thread that waits in the system call goes on directly after the copy of the instruction.
    let after = plan.moved(TEXT + 7).unwrap() as usize;
    assert_eq!(plan.emitted.code.bytes[after - 2..after], SYSCALL);
    assert_eq!(plan.moved(TEXT + 5), None, "the jump is there");
}

#[test]
fn the_window_begins_earlier_if_there_is_no_room_behind() {
    // push rbx and pop rbx, three times each; mov eax, edi; mov [rsi], rcx; syscall; ret
    let code =
        [&[0x53, 0x53, 0x53, 0x5b, 0x5b, 0x5b][..], &[0x89, 0xf8, 0x48, 0x89, 0x0e], &SYSCALL, &[0xc3]]
            .concat();
    let plan = plan(&code, false);
    assert_eq!(plan.redirected, [TEXT + 11]);
    let piece = code_behind(&plan, TEXT + 8);
    assert_eq!(piece[0], "mov [rsi],rcx");
    assert!(piece[1].starts_with("lea ecx,[rax-0x38]"), "{piece:?}");
    let call = plan.moved(TEXT + 11).unwrap() as usize;
    assert!(listing(&plan.emitted.code.bytes[call..call + 3], 0)[0].starts_with("lea ecx"));
}

#[test]
fn a_system_call_in_the_first_instructions_forbids_the_hook() {
    // mov eax, edi; push rbx; syscall; ret
    let code = [&[0x89, 0xf8, 0x53][..], &SYSCALL, &[0xc3]].concat();
    let plan = plan(&code, false);
    assert_eq!(plan.redirected, [TEXT + 3]);
    assert_eq!(*plan.verdicts, [Verdict::Refused(Reason::Agent)]);
    assert_eq!(plan.patches().len(), 1);
}

#[test]
fn a_system_call_without_room_is_reported() {
    // push rbp; mov ebp, esp; pop rbp; mov eax, edi; syscall; jmp to the syscall; jmp to itself; jmp to that; ret
    let code =
        [&[0x55, 0x89, 0xe5, 0x5d, 0x89, 0xf8][..], &SYSCALL, &[0xeb, 0xfc, 0xeb, 0xfe, 0xeb, 0xfc, 0xc3]]
            .concat();
    let plan = plan(&code, false);
    assert_eq!((plan.redirected.as_slice(), plan.unredirected.as_slice()), (&[][..], &[TEXT + 6][..]));
}

#[test]
fn vfork_and_other_system_calls_stay() {
    for number in [0, 58, 60] {
        let code = [&[0xb8, number, 0, 0, 0][..], &SYSCALL, &AFTER].concat();
        let plan = plan(&code, false);
        assert!(plan.redirected.is_empty() && plan.unredirected.is_empty(), "{number}");
    }
}

#[test]
fn a_function_with_such_a_system_call_is_not_counted() {
    for (number, counted) in [(57, 0), (39, 1)] {
        let code = [&[0xb8, number, 0, 0, 0][..], &SYSCALL, &AFTER].concat();
        assert_eq!(plan(&code, true).counted().0, counted, "{number}");
    }
}
