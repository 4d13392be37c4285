//! The fields of an encoded instruction, and the classes of instructions that [`super::decode`] and [`super::skim`] tell apart.

use std::ops::Range;

/// Where control goes from an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Class {
    /// To the next one.
    Next,
    /// The same, and the instruction is a `lea` of 64 bits.
    Lea,
    /// The same, and it is a `push` or a `pop` of a register or immediate operand.
    Push,
    Pop,
    /// Direct branches.
    Call,
    Jump,
    Conditional,
    /// `ret` without an operand.
    Return,
}

pub(crate) const CLASSES: [Class; 8] = [
    Class::Next,
    Class::Lea,
    Class::Push,
    Class::Pop,
    Class::Call,
    Class::Jump,
    Class::Conditional,
    Class::Return,
];

/// Bytes that [`predecode`] looks at: more than any instruction has.
pub(crate) const WINDOW: usize = 16;

pub(crate) const RAX: u8 = 0;

/// As an index: none.
pub(crate) const RSP: u8 = 4;

/// By ModRM: a bit for the register that reg names, and from bit 8 on for the one that rm names, if it names one,
/// both without what a REX prefix adds; from [`LEN`] on the bytes of ModRM, SIB and displacement; [`SIB`]; and
/// [`SIB_0`].
pub(crate) static SHAPES: [u32; 256] = {
    let mut table = [0; 256];
    let mut modrm = 0;
    while modrm < 256 {
        let (mode, reg, rm) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
        let sib = mode != 3 && rm == 4;
        let relative = mode == 0 && rm == 5;
        let displacement = match mode {
            0 if relative => 4,
            1 => 1,
            2 => 4,
            _ => 0,
        };
        let len = 1 + displacement + if sib { 1 } else { 0 };
        let registers = 1 << reg | if sib || relative { 0 } else { 0x100 << rm };
        table[modrm] =
            registers | len << LEN | if sib { SIB } else { 0 } | if sib && mode == 0 { SIB_0 } else { 0 };
        modrm += 1;
    }
    table
};

pub(crate) const LEN: u32 = 16;

pub(crate) const SIB: u32 = 1 << 20;

/// The mode is 0: where the SIB byte's base is 5, a displacement of four bytes follows instead of a register.
pub(crate) const SIB_0: u32 = 1 << 21;

/// Fields of a REX prefix: 64-bit operands; the fourth bits of ModRM.reg, of the index, and of the base register,
/// ModRM.rm or the opcode's register.
pub(crate) const W: u8 = 8;

pub(crate) const R: u8 = 4;

pub(crate) const X: u8 = 2;

pub(crate) const B: u8 = 1;

/// Whether the four bytes before `end` are an address.
pub(crate) fn is_address(window: &[u8; WINDOW], end: usize, addresses: &Range<u64>) -> bool {
    let value = word(window, end - 4);
    addresses.contains(&u64::from(value as u32)) || addresses.contains(&(value as u64))
}

#[inline(always)]
pub(crate) fn first_bytes(window: &[u8; WINDOW]) -> u64 {
    u64::from_le_bytes(*window.first_chunk().unwrap_or(&[0; 8]))
}

#[inline(always)]
pub(crate) fn word(window: &[u8; WINDOW], at: usize) -> i32 {
    let bytes = window.get(at..).and_then(<[u8]>::first_chunk);
    i32::from_le_bytes(*bytes.unwrap_or(&[0; 4]))
}
