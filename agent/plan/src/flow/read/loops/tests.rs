#![allow(clippy::unwrap_used)]

use crate::flow::facts::Flow;
use crate::testing::{TEXT, image};
use gprofinject_image::{ElfType, Segment};
use iced_x86::code_asm::*;
use iced_x86::{Code, Instruction, MemoryOperand, Register};

/// The address of the tables. The first function begins at [`TEXT`].
const TABLE: u64 = TEXT + 0x400;
/// The length of the function, and of the one after it.
const LEN: u64 = 0x40;

/// The function's code ends before the function, so that control does not continue in the one after it.
const RET: u8 = 0xc3;

/// Returns whether the first function may loop. `table` has the data at [`TABLE`].
fn loops(kind: ElfType, table: &[u8], code: impl FnOnce(&mut CodeAssembler)) -> bool {
    let mut assembler = CodeAssembler::new(64).unwrap();
    code(&mut assembler);
    let mut bytes = assembler.assemble(TEXT).unwrap();
    assert!(bytes.len() <= LEN as usize);
    bytes.resize(2 * LEN as usize, RET);
    let mut image = image(kind, TEXT, &bytes, &[LEN as usize, LEN as usize]);
    image.segments.push(Segment { address: TABLE, memory: table.len() as u64, bytes: table });
    let words = table.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    let places = (TABLE..).step_by(8).zip(words);
    let relocated: Vec<(u64, u64)> = places.filter(|&(_, to)| image.is_code(to)).collect();
    image.details_mut().code_pointers.extend(relocated.iter().map(|&(_, to)| to));
    image.details_mut().code_pointers.sort_unstable();
    image.details_mut().code_pointers.dedup();
    if kind == ElfType::Dyn {
        image.details_mut().relocated = relocated;
    }
    Flow::of(&image, true).functions[0].table_loops
}

fn distances(targets: &[u64]) -> Vec<u8> {
    targets.iter().flat_map(|target| ((TEXT + target).wrapping_sub(TABLE) as i32).to_le_bytes()).collect()
}

fn addresses(targets: &[u64]) -> Vec<u8> {
    targets.iter().flat_map(|target| (TEXT + target).to_le_bytes()).collect()
}

/// `lea register, [rip + ...]`
fn lea(a: &mut CodeAssembler, register: Register, address: u64) {
    let place = MemoryOperand::with_base_displ(Register::RIP, address as i64);
    a.add_instruction(Instruction::with2(Code::Lea_r64_m, register, place).unwrap()).unwrap();
}

/// `inc rsi; lea rdx, [table]; jmp [rdx+rcx*8]`
fn by_address(a: &mut CodeAssembler) {
    a.inc(rsi).unwrap();
    lea(a, Register::RDX, TABLE);
    a.jmp(qword_ptr(rdx + rcx * 8)).unwrap();
}

/// `inc rsi; lea rdx, [table]; movsxd rax, [rdx+rcx*4]; add rax, rdx; jmp rax`
fn by_distance(a: &mut CodeAssembler) {
    a.inc(rsi).unwrap();
    lea(a, Register::RDX, TABLE);
    a.movsxd(rax, dword_ptr(rdx + rcx * 4)).unwrap();
    a.add(rax, rdx).unwrap();
    a.jmp(rax).unwrap();
}

#[test]
fn a_table_of_functions_makes_no_loop_whatever_stands_first() {
    for targets in [&[0, LEN][..], &[LEN, 0], &[0], &[0, 0, 0], &[0, LEN, 0x10], &[0, 0, LEN, 0x10]] {
        assert!(!loops(ElfType::Dyn, &addresses(targets), by_address), "{targets:x?}");
        assert!(!loops(ElfType::Exec, &addresses(targets), by_address), "{targets:x?}");
        assert!(!loops(ElfType::Dyn, &distances(targets), by_distance), "{targets:x?}");
    }
}

#[test]
fn a_label_table_that_contains_the_start_makes_one() {
    for targets in [&[0, 0x10][..], &[0x10, 0], &[0x10, 0x20, 0], &[0, 0, 0x10, LEN]] {
        assert!(loops(ElfType::Dyn, &addresses(targets), by_address), "{targets:x?}");
        assert!(loops(ElfType::Exec, &addresses(targets), by_address), "{targets:x?}");
        assert!(loops(ElfType::Dyn, &distances(targets), by_distance), "{targets:x?}");
    }
    assert!(!loops(ElfType::Dyn, &distances(&[0x10, 0x20]), by_distance));
}

#[test]
fn a_table_that_follows_is_another_one() {
    // A table of this function twice, and the table of the same function's `switch`.
    let table = addresses(&[0, 0, 0x10, 0x20]);
    let code = |a: &mut CodeAssembler| {
        by_address(a);
        lea(a, Register::RDX, TABLE + 16);
        a.jmp(qword_ptr(rdx + rcx * 8)).unwrap();
    };
    assert!(!loops(ElfType::Dyn, &table, code));
    assert!(!loops(ElfType::Exec, &table, code));
}

#[test]
fn a_switch_does_not_make_a_loop_of_a_tail_call_through_an_unknown_pointer() {
    // The start is in data as well, in some table of functions.
    let table = addresses(&[0x10, 0x20, LEN, 0]);
    for kind in [ElfType::Dyn, ElfType::Exec] {
        let code = |a: &mut CodeAssembler| {
            by_address(a);
            a.mov(rax, qword_ptr(rdi + 8)).unwrap();
            a.jmp(rax).unwrap();
        };
        assert!(!loops(kind, &table, code));
        // Without the `switch`, some jump uses the labels.
        assert!(loops(kind, &table, |a| {
            a.inc(rsi).unwrap();
            a.jmp(qword_ptr(rdi)).unwrap();
        }));
    }
}

#[test]
fn a_function_that_begins_with_its_frame_has_no_label_at_its_start() {
    let table = addresses(&[0, 0x10]);
    assert!(!loops(ElfType::Dyn, &table, |a| {
        a.push(rbx).unwrap();
        by_address(a);
    }));
    assert!(!loops(ElfType::Dyn, &table, |a| {
        a.sub(rsp, 8).unwrap();
        by_address(a);
    }));
}

#[test]
fn a_function_that_computes_its_own_address_calls_itself() {
    // lea rax, [start]; cmove rax, rdx; jmp rax: a state machine, which may use its red zone.
    let machine = |a: &mut CodeAssembler| {
        a.mov(dword_ptr(rsp - 8), edi).unwrap();
        lea(a, Register::RAX, TEXT);
        a.cmove(rax, rdx).unwrap();
        a.jmp(rax).unwrap();
    };
    assert!(!loops(ElfType::Dyn, &[], machine));
    // The address of another label.
    assert!(loops(ElfType::Dyn, &[], |a| {
        lea(a, Register::RDX, TEXT + 3);
        machine(a);
    }));
    // lea rax, [start]; dec ecx; jmp rax: a loop.
    assert!(loops(ElfType::Dyn, &[], |a| {
        lea(a, Register::RAX, TEXT);
        a.dec(ecx).unwrap();
        a.jmp(rax).unwrap();
    }));
}
