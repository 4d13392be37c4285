#![allow(clippy::unwrap_used)]
use super::*;
use crate::decide::options::{Engine, Hooks, Options};
use crate::plan::Plan;
use crate::testing::{TEXT, image};
use crate::x86::relocate::instructions::tests::listing;
use crate::x86::template::kind::{Measured, Role};
use gprofinject_image::ElfType;

/// mov eax, edi; mov [rsi], rcx; ret
const BODY: [u8; 6] = [0x89, 0xf8, 0x48, 0x89, 0x0e, 0xc3];

/// musl's longjmp.
const MUSL: [u8; 37] = [
    0x31, 0xc0, 0x83, 0xfe, 0x01, 0x11, 0xf0, // xor eax, eax; cmp esi, 1; adc eax, esi
    0x48, 0x8b, 0x1f, 0x48, 0x8b, 0x6f, 0x08, // mov rbx, [rdi]; mov rbp, [rdi+8]
    0x4c, 0x8b, 0x67, 0x10, 0x4c, 0x8b, 0x6f, 0x18, // mov r12, [rdi+16]; mov r13, [rdi+24]
    0x4c, 0x8b, 0x77, 0x20, 0x4c, 0x8b, 0x7f, 0x28, // mov r14, [rdi+32]; mov r15, [rdi+40]
    0x48, 0x8b, 0x67, 0x30, 0xff, 0x67, 0x38, // mov rsp, [rdi+48]; jmp [rdi+56]
];

/// Returns the image of functions with these names and code.
fn program<'d>(code: &'d [u8], functions: &[(&'static str, usize)]) -> Image<'d> {
    let sizes: Vec<usize> = functions.iter().map(|&(_, size)| size).collect();
    let mut image = image(ElfType::Dyn, TEXT, code, &sizes);
    for (function, &(name, _)) in image.functions.iter_mut().zip(functions) {
        function.name = name;
    }
    image.facts.has_symtab = functions.iter().any(|(name, _)| !name.is_empty());
    image
}

/// Returns the plan of a standalone program of which only `main` is selected.
fn plan(image: &Image, hooks: Hooks) -> Plan {
    let options = Options {
        hooks,
        engine: Engine::Builtin,
        selected: &|f| f.name == "main" || f.address == TEXT,
        min_size: 0,
        insist: false,
        shadow_stack: false,
        counted: None,
        clock: false,
        outermost: false,
        role: Role::Standalone,
        measured: Measured::None,
        told: None,
        arena: None,
        words: 0,
    };
    Plan::new(image, &options)
}

/// Returns the first instructions of the body of the function at an address.
fn body(plan: &Plan, address: u64) -> Vec<String> {
    let record = plan.records.iter().find(|record| record.entry == address).unwrap();
    listing(&plan.emitted.code.bytes[record.body as usize..][..32], plan.arena + u64::from(record.body))
}

#[test]
fn lookups_and_jumps_go_through_the_agent() {
    let names = ["main", "_dl_find_object", "dl_iterate_phdr", "__libc_siglongjmp"];
    let code = BODY.repeat(names.len());
    let mut image = program(&code, &names.map(|name| (name, BODY.len())));
    image.facts.own_unwinder = true;
    let plan = plan(&image, Hooks::Both);
    assert_eq!((plan.hooks, plan.records.len()), (Hooks::Both, names.len()), "{:?}", plan.downgrade);
    let gates = [
        offset_of!(ArenaHeader, find_object),
        offset_of!(ArenaHeader, iterate),
        offset_of!(ArenaHeader, jump),
    ];
    for (n, gate) in (1..).zip(gates) {
        let record = plan.records[n];
        let listing = body(&plan, record.entry);
        let real = plan.arena + u64::from(record.body) + 13;
        assert_eq!(listing[0], format!("lea r11,[{real:#X}]").replace("0X", "0x"));
        let word = plan.arena + gate as u64;
        assert_eq!(listing[1], format!("jmp qword ptr [{word:#X}]").replace("0X", "0x"));
        assert_eq!(listing[2..4], ["mov eax,edi", "mov [rsi],rcx"]);
    }
    assert_eq!(body(&plan, TEXT)[0], "mov eax,edi", "main does not go through the agent");
}

/// A signal can interrupt a thunk of either kind, and its handler may unwind.
#[test]
fn with_entry_hooks_lookups_go_through_the_agent_as_well() {
    let code = BODY.repeat(2);
    let image = program(&code, &[("main", BODY.len()), ("_dl_find_object", BODY.len())]);
    let plan = plan(&image, Hooks::Entry);
    assert_eq!(plan.records.len(), 2);
    let gate = plan.arena + offset_of!(ArenaHeader, find_object) as u64;
    let listing = body(&plan, plan.records[1].entry);
    assert_eq!(listing[1], format!("jmp qword ptr [{gate:#X}]").replace("0X", "0x"));
}

#[test]
fn an_unwinder_without_names_forbids_exit_hooks() {
    // mov rax, 0x50f0000000fc0c7, by which libgcc recognises a signal frame
    let recognises = [&[0x48, 0xb8][..], &RESTORER].concat();
    // cmp dword [rsi], PT_GNU_EH_FRAME
    let searches = [&[0x81, 0x3e][..], &HEADER_TYPE].concat();
    // mov rax, 15; syscall, which is the restorer itself
    let restorer = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];
    for (more, hooks) in
        [(&recognises[..], Hooks::Entry), (&searches, Hooks::Entry), (&restorer, Hooks::Both)]
    {
        let code = [&BODY[..], more, &[0xc3]].concat();
        let image = program(&code, &[("", BODY.len()), ("", more.len() + 1)]);
        let plan = plan(&image, Hooks::Both);
        assert_eq!((plan.hooks, plan.downgrade.is_some()), (hooks, hooks == Hooks::Entry), "{more:x?}");
    }
}

#[test]
fn landing_pads_are_for_an_unwinder() {
    let code = BODY.repeat(2);
    let mut image = program(&code, &[("", BODY.len()), ("", BODY.len())]);
    assert_eq!(plan(&image, Hooks::Both).hooks, Hooks::Both);
    image.details_mut().landing_pads.push(TEXT + 6 + 2);
    let plan = plan(&image, Hooks::Both);
    assert!(plan.hooks == Hooks::Entry && plan.downgrade.unwrap().contains("functions without names"));
}

#[test]
fn a_lookup_that_cannot_be_hooked_forbids_exit_hooks() {
    // The second function is a byte that begins no instruction.
    let code = [&BODY[..], &[0x06; 8]].concat();
    let mut image = program(&code, &[("main", BODY.len()), ("_dl_find_object", 8)]);
    image.facts.own_unwinder = true;
    let plan = plan(&image, Hooks::Both);
    assert!(plan.hooks == Hooks::Entry && plan.downgrade.unwrap().contains("cannot be hooked"));
}

#[test]
fn longjmp_is_found_by_its_code() {
    let code = [&BODY[..], &MUSL].concat();
    let image = program(&code, &[("", BODY.len()), ("", MUSL.len())]);
    let plan = plan(&image, Hooks::Both);
    assert_eq!((plan.hooks, plan.records.len()), (Hooks::Both, 2));
    assert!(body(&plan, TEXT + BODY.len() as u64)[0].starts_with("lea r11,["));
}

#[test]
fn longjmp_between_functions_forbids_exit_hooks() {
    let code = [&BODY[..], &MUSL].concat();
    let mut image = program(&code, &[("", BODY.len())]);
    image.functions[0].limit = TEXT + BODY.len() as u64;
    let plan = plan(&image, Hooks::Both);
    assert!(plan.hooks == Hooks::Entry && plan.downgrade.unwrap().contains("longjmp"));
    // A switch of stacks that does not end in a jump is none: without `jmp [rdi+56]`.
    let code = [&BODY[..], &MUSL[..MUSL.len() - 3], &[0xc3]].concat();
    let range = TEXT + BODY.len() as u64..TEXT + code.len() as u64;
    let image = program(&code, &[("", BODY.len())]);
    assert!(!leaves_frames(&image, &range));
}
