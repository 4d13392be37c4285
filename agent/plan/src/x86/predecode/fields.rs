//! The fields of an encoded instruction, and the classes of instructions that [`super::decode`] and
//! [`super::skim`] distinguish.

use std::ops::Range;

/// Where control continues after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Class {
    /// To the next instruction.
    Next,
    /// To the next instruction, and this one is a 64-bit `lea`.
    Lea,
    /// To the next instruction, and this one is a `push` of a register or an immediate operand.
    Push,
    /// To the next instruction, and this one is a `pop` of a register.
    Pop,
    /// A direct `call`.
    Call,
    /// A direct `jmp`.
    Jump,
    /// A direct conditional jump.
    Conditional,
    /// `ret` without an operand.
    Return,
}

/// The classes by their numbers.
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

/// The number of bytes that are read of each instruction. No instruction has more than 15.
pub(crate) const WINDOW: usize = 16;

/// The number of rax.
pub(crate) const RAX: u8 = 0;

/// The number of rsp. In the index field of a SIB byte, this number means that there is no index register.
pub(crate) const RSP: u8 = 4;

/// By ModRM: a bit for the register that reg names, and from bit 8 on one for the register that rm names, if
/// it names one, both without the bit of a REX prefix; from [`LEN`] on the bytes of ModRM, SIB and
/// displacement; [`SIB`]; and [`SIB_0`].
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

/// The lowest bit of the length in an entry of [`SHAPES`]. The length has four bits.
pub(crate) const LEN: u32 = 16;

/// The flag for a SIB byte.
pub(crate) const SIB: u32 = 1 << 20;

/// The mode is 0. Then, if the SIB byte's base is 5, there is a displacement of four bytes instead of a base
/// register.
pub(crate) const SIB_0: u32 = 1 << 21;

/// REX.W: operands have 64 bits.
pub(crate) const W: u8 = 8;

/// REX.R: the fourth bit of ModRM.reg.
pub(crate) const R: u8 = 4;

/// REX.X: the fourth bit of the index.
pub(crate) const X: u8 = 2;

/// REX.B: the fourth bit of the base register, of ModRM.rm, or of the register in the opcode.
pub(crate) const B: u8 = 1;

/// Returns whether the four bytes before `end` form an address.
pub(crate) fn is_address(window: &[u8; WINDOW], end: usize, addresses: &Range<u64>) -> bool {
    let value = word(window, end - 4);
    addresses.contains(&u64::from(value as u32)) || addresses.contains(&(value as u64))
}

#[inline(always)]
/// Returns the first eight bytes.
pub(crate) fn first_bytes(window: &[u8; WINDOW]) -> u64 {
    u64::from_le_bytes(*window.first_chunk().unwrap_or(&[0; 8]))
}

#[inline(always)]
/// Returns the i32 at an offset.
pub(crate) fn word(window: &[u8; WINDOW], at: usize) -> i32 {
    let bytes = window.get(at..).and_then(<[u8]>::first_chunk);
    i32::from_le_bytes(*bytes.unwrap_or(&[0; 4]))
}
