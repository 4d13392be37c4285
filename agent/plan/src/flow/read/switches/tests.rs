#![allow(clippy::unwrap_used)]

use super::*;
use crate::testing::{TEXT, image};
use gprofinject_image::{ElfType, Segment};
use iced_x86::code_asm::*;

/// The address of the table. The function begins at [`TEXT`].
const TABLE: u64 = TEXT + 0x400;
/// The length of the function, and of the one after it.
const LEN: usize = 0x40;

/// Returns whether the indirect jumps of the function stay in it. `table` has the bytes of the data at [`TABLE`].
fn stays(kind: ElfType, table: &[u8], code: impl FnOnce(&mut CodeAssembler)) -> bool {
    let mut assembler = CodeAssembler::new(64).unwrap();
    code(&mut assembler);
    let mut bytes = assembler.assemble(TEXT).unwrap();
    assert!(bytes.len() <= LEN);
    bytes.resize(3 * LEN, 0x90);
    let mut image = image(kind, TEXT, &bytes, &[LEN, LEN, LEN]);
    image.functions[2].kind = FunctionKind::Cold(Some(0));
    image.segments.push(Segment { address: TABLE, bytes: table, memory: table.len() as u64 });
    stay(&image, &image.functions[0], &[TABLE], &mut InstructionInfoFactory::new())
}

/// Returns a table of distances of these addresses, which are relative to the function.
fn distances(targets: &[u64]) -> Vec<u8> {
    targets.iter().flat_map(|target| ((TEXT + target).wrapping_sub(TABLE) as i32).to_le_bytes()).collect()
}

/// Returns a table of addresses, given relative to the function.
fn addresses(targets: &[u64]) -> Vec<u8> {
    targets.iter().flat_map(|target| (TEXT + target).to_le_bytes()).collect()
}

/// `lea rdx, [table]; movsxd rax, [rdx+rcx*4]; add rax, rdx; jmp rax`, with code before the sum.
fn switch(a: &mut CodeAssembler, between: impl FnOnce(&mut CodeAssembler)) {
    a.lea(rdx, ptr(TABLE)).unwrap();
    a.movsxd(rax, dword_ptr(rdx + rcx * 4)).unwrap();
    between(a);
    a.add(rax, rdx).unwrap();
    a.jmp(rax).unwrap();
}

#[test]
fn a_table_of_distances() {
    let inside = distances(&[0x10, 0x20, 0x30]);
    assert!(stays(ElfType::Dyn, &inside, |a| switch(a, |_| ())));
    assert!(stays(ElfType::Dyn, &inside, |a| switch(a, |a| a.mov(ebx, 1).unwrap())));
    // The last entry is for a case that cannot be.
    assert!(stays(ElfType::Dyn, &distances(&[0x10, LEN as u64, 0x30]), |a| switch(a, |_| ())));
    // What follows may be the next function's table.
    assert!(stays(ElfType::Dyn, &distances(&[0x10, 0x50]), |a| switch(a, |_| ())));
}

#[test]
fn tables_that_lead_elsewhere() {
    let none = |a: &mut CodeAssembler| switch(a, |_| ());
    // The second function, and the part of some function.
    assert!(!stays(ElfType::Dyn, &distances(&[LEN as u64, 0x10]), none));
    assert!(!stays(ElfType::Dyn, &distances(&[0x10, 2 * LEN as u64 + 4]), none));
    // The function's own start: a call, or a loop.
    assert!(!stays(ElfType::Dyn, &distances(&[0, 0x10]), none));
    // Nothing that is a table.
    assert!(!stays(ElfType::Dyn, b"no table", none));
}

#[test]
fn jumps_that_are_no_switch() {
    let inside = distances(&[0x10, 0x20]);
    let no = |code: fn(&mut CodeAssembler)| assert!(!stays(ElfType::Dyn, &inside, code));
    no(|a| a.jmp(rax).unwrap());
    no(|a| a.jmp(qword_ptr(rax + 8)).unwrap());
    // One of the values changes before the sum.
    no(|a| switch(a, |a| a.mov(rdx, rbx).unwrap()));
    no(|a| switch(a, |a| a.mov(eax, ebx).unwrap()));
    no(|a| switch(a, |a| a.pop(rdx).unwrap()));
    no(|a| switch(a, |a| a.xchg(rbx, rdx).unwrap()));
    no(|a| switch(a, |a| a.call(TEXT + LEN as u64).unwrap()));
    // Control may come to the sum from elsewhere.
    no(|a| {
        let mut sum = a.create_label();
        switch(a, |a| a.set_label(&mut sum).unwrap());
        a.jmp(sum).unwrap();
    });
    // Another register, a displacement, another scale.
    no(|a| {
        a.movsxd(rax, dword_ptr(rdx + rcx * 4)).unwrap();
        a.add(rax, rbx).unwrap();
        a.jmp(rax).unwrap();
    });
    no(|a| {
        a.movsxd(rax, dword_ptr(rdx + rcx * 4 + 8)).unwrap();
        a.add(rax, rdx).unwrap();
        a.jmp(rax).unwrap();
    });
    no(|a| {
        a.movsxd(rax, dword_ptr(rdx + rcx * 8)).unwrap();
        a.add(rax, rdx).unwrap();
        a.jmp(rax).unwrap();
    });
}

#[test]
fn a_table_of_addresses() {
    let table = addresses(&[0x10, 0x20, 0x30]);
    let direct = |a: &mut CodeAssembler| a.jmp(qword_ptr(rcx * 8 + TABLE)).unwrap();
    let loaded = |a: &mut CodeAssembler| {
        a.mov(rax, qword_ptr(rcx * 8 + TABLE)).unwrap();
        a.jmp(rax).unwrap();
    };
    assert!(stays(ElfType::Exec, &table, direct));
    assert!(stays(ElfType::Exec, &table, loaded));
    // A table of functions.
    assert!(!stays(ElfType::Exec, &addresses(&[LEN as u64, 0x10]), direct));
    assert!(!stays(ElfType::Exec, &addresses(&[LEN as u64, 0x10]), loaded));
    // The data at a register's address are not known.
    assert!(!stays(ElfType::Exec, &table, |a| a.jmp(qword_ptr(rdx + rcx * 8)).unwrap()));
}
