#![allow(clippy::unwrap_used)]
use super::*;
use crate::testing::{TEXT, image};
use gprofinject_image::ElfType;

const SYSCALL: [u8; 2] = [0x0f, 0x05];
const RET: u8 = 0xc3;

/// Returns the system calls of a function with this code.
fn calls(code: &[u8]) -> Vec<SystemCall> {
    let image = image(ElfType::Dyn, TEXT, code, &[code.len()]);
    find(&image, &Flow::of(&image, true))
}

/// Returns the number of the last system call of a function that ends with `syscall; ret`.
fn number(before: &[u8]) -> Option<u32> {
    let found = calls(&[before, &SYSCALL, &[RET]].concat());
    let last = found.last().unwrap();
    assert_eq!(last.at, TEXT + before.len() as u64);
    last.number
}

#[test]
fn numbers_are_constants_in_straight_code() {
    // mov eax, 57
    assert_eq!(number(&[0xb8, 57, 0, 0, 0]), Some(57));
    // mov rax, 59
    assert_eq!(number(&[0x48, 0xc7, 0xc0, 59, 0, 0, 0]), Some(59));
    // xor eax, eax; mov al, 56, as in musl; and what clone.s does between that and the system call
    assert_eq!(number(&[0x31, 0xc0, 0xb0, 56, 0x49, 0x89, 0xfb, 0x48, 0x89, 0x0e]), Some(56));
    // push 57; pop rax
    assert_eq!(number(&[0x6a, 57, 0x58]), Some(57));
    // mov esi, 12; xor edi, edi; mov eax, esi
    assert_eq!(number(&[0xbe, 12, 0, 0, 0, 0x31, 0xff, 0x89, 0xf0]), Some(12));
}

#[test]
fn other_numbers_are_unknown() {
    // mov eax, edi
    assert_eq!(number(&[0x89, 0xf8]), None);
    // mov eax, 57; inc eax
    assert_eq!(number(&[0xb8, 57, 0, 0, 0, 0xff, 0xc0]), None);
    // mov eax, 57; mov ah, 1
    assert_eq!(number(&[0xb8, 57, 0, 0, 0, 0xb4, 1]), None);
    // mov eax, 57; the result of another system call
    assert_eq!(number(&[0xb8, 57, 0, 0, 0, 0x0f, 0x05]), None);
    // mov eax, 57; call next
    assert_eq!(number(&[0xb8, 57, 0, 0, 0, 0xe8, 0, 0, 0, 0]), None);
    // push 57; push rbx; pop rax
    assert_eq!(number(&[0x6a, 57, 0x53, 0x58]), None);
    // mov eax, 57; the jump before leads here: jne to the syscall; mov eax, 1
    assert_eq!(number(&[0xb8, 57, 0, 0, 0, 0x75, 5, 0xb8, 1, 0, 0, 0]), None);
    // jmp over; mov eax, 57; over:
    assert_eq!(number(&[0xeb, 5, 0xb8, 57, 0, 0, 0]), None);
}

#[test]
fn a_run_ends_where_something_leads() {
    // mov eax, 57; syscall; cmp rax, -4096; ja to the ret; ret
    let code =
        [&[0xb8, 57, 0, 0, 0][..], &SYSCALL, &[0x48, 0x3d, 0, 0xf0, 0xff, 0xff, 0x77, 0], &[RET]].concat();
    let found = calls(&code);
    assert_eq!(found[0].run, [0, 5, 7, 13].map(|offset| TEXT + offset), "without the branch");
    // again: mov eax, esi; syscall; test eax, eax; jne again + 2
    let code = [&[0x89, 0xf0][..], &SYSCALL, &[0x85, 0xc0, 0x75, 0xfa], &[RET]].concat();
    assert_eq!(calls(&code)[0].run, [2, 4, 6].map(|offset| TEXT + offset), "the syscall is a target");
}

#[test]
fn what_cannot_be_decoded_is_no_run() {
    // mov eax, 57; syscall; a byte that begins no instruction; mov eax, 56; syscall
    let code = [&[0xb8, 57, 0, 0, 0][..], &SYSCALL, &[0x06], &[0xb8, 56, 0, 0, 0], &SYSCALL, &[RET]].concat();
    let found: Vec<_> =
        calls(&code).into_iter().map(|call| (call.at - TEXT, call.number, call.run)).collect();
    assert_eq!(found, [(5, Some(57), vec![]), (13, Some(56), vec![])]);
}

#[test]
fn a_system_call_behind_which_an_address_is_taken_is_compared() {
    // mov rax, rsi; syscall; ret; lea rcx, [after the syscall]; ret
    let code =
        [&[0x48, 0x89, 0xf0][..], &SYSCALL, &[RET, 0x48, 0x8d, 0x0d, 0xf8, 0xff, 0xff, 0xff, RET]].concat();
    assert!(calls(&code)[0].is_compared);
    let code =
        [&[0x48, 0x89, 0xf0][..], &SYSCALL, &[RET, 0x48, 0x8d, 0x0d, 0xf7, 0xff, 0xff, 0xff, RET]].concat();
    assert!(!calls(&code)[0].is_compared);
}

#[test]
fn code_between_functions_counts() {
    // ret; mov eax, 57; syscall; ret
    let code = [&[RET, 0xb8, 57, 0, 0, 0][..], &SYSCALL, &[RET]].concat();
    let mut image = image(ElfType::Dyn, TEXT, &code, &[1]);
    image.functions[0].limit = TEXT + 1;
    let found = find(&image, &Flow::of(&image, true));
    assert_eq!((found[0].at, found[0].number, found[0].function), (TEXT + 6, Some(57), None));
    assert_eq!(found[0].run, [1, 6, 8, 9].map(|offset| TEXT + offset));
}

#[test]
fn a_signal_restorer_may_be_described_one_byte_early() {
    // The byte before it; mov rax, 15; syscall; nop
    let code = [&[0x00, 0x48, 0xc7, 0xc0, 15, 0, 0, 0][..], &SYSCALL, &[0x90]].concat();
    let mut image = image(ElfType::Dyn, TEXT, &code, &[code.len()]);
    assert_eq!(
        find(&image, &Flow::of(&image, true))[0].number,
        None,
        "a function begins with its first byte"
    );
    (image.functions[0].frame, image.functions[0].kind) = (Some(false), FunctionKind::Cold(None));
    let found = find(&image, &Flow::of(&image, true));
    assert_eq!((found[0].at, found[0].number), (TEXT + 8, Some(15)));
}

#[test]
fn code_between_functions_is_entered_at_its_instructions() {
    // A function: call 8 bytes on; ret. Between functions: two zeros; mov eax, 57; syscall; ret
    let code =
        |call: u8| [&[0xe8, call, 0, 0, 0, RET, 0, 0, 0xb8, 57, 0, 0, 0][..], &SYSCALL, &[RET]].concat();
    for (call, len) in [(3, 4), (4, 0)] {
        let code = code(call);
        let mut image = image(ElfType::Dyn, TEXT, &code, &[6]);
        image.functions[0].limit = TEXT + 6;
        let found = find(&image, &Flow::of(&image, true));
        assert_eq!((found[0].at, found[0].run.len()), (TEXT + 13, len), "{call}");
    }
}
