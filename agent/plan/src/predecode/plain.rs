//! The length of instructions that tell nothing else: more than half of a program's.

use super::tables::{BYTES, CLASS, IMM, IMM_OF_TEST, IMMZ, IMPLICIT, LEGACY, MODRM, ODD, OPCODE_REGISTER};
use super::tables::{OPCODES, PREFIXES, RAX};
use super::{B, Class, LEN, R, RSP, SHAPES, SIB, SIB_0, W, WINDOW, X, first_bytes, is_address, word};
use std::ops::Range;

/// Registers that the caller of [`plain_len`] follows: a bit for each, by its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interest {
    /// They hold stack addresses.
    pub(crate) stack: u16,
    /// They are followed for another reason.
    pub(crate) others: u16,
}

impl Interest {
    /// Nothing is followed.
    pub(crate) const NONE: Interest = Interest { stack: 0, others: 0 };
}

/// An opcode's entry in [`PLAIN`]. Bits 0 to 15: the forms of [`SHAPES`] that an instruction may have. Then 8 bits: the
/// register that the opcode itself names, without what a REX prefix adds. Then 8 bits: the registers that no field names.
pub(super) const NAMED: u32 = 16;
pub(super) const HIDDEN: u32 = 24;
/// Bytes of the opcode's last byte and of the immediate operand.
pub(super) const BASE_LEN: u32 = 32;
/// The last four bytes are an immediate operand.
pub(super) const WORD: u64 = 1 << 40;
/// Not with a prefix for operands of 64 bits.
pub(super) const NOT_WIDE: u64 = 1 << 41;
/// Where the shapes of the opcode begin in [`PLAIN_SHAPES`], by its ModRM byte.
pub(super) const SHAPE: u32 = 48;

/// By mandatory prefix, number of opcode bytes, and last opcode byte; 0: not plain.
pub(super) static PLAIN: [u64; 4 * 512] = {
    let mut table = [0; 4 * 512];
    let mut n = 0;
    while n < table.len() {
        let (mandatory, opcode) = (n / 512, n % 512);
        let entry = OPCODES[opcode];
        n += 1;
        let is_next = (entry >> CLASS & 7) as usize == Class::Next as usize;
        if entry & LEGACY != 0 || !is_next || entry >> PREFIXES >> mandatory & 1 == 0 {
            continue;
        }
        let is_word = entry & IMMZ != 0;
        let mut immediate = entry >> IMM & 5;
        if is_word && mandatory == 1 {
            immediate -= 2;
        }
        let mut plain = entry & 0xffff | (1 + immediate) << BASE_LEN;
        if entry & ODD != 0 {
            if entry & IMM_OF_TEST != 0 {
                plain &= !0x101;
            } else {
                plain |= NOT_WIDE;
            }
        }
        if is_word {
            // With a REX prefix behind a prefix 66 the operand has four bytes after all.
            plain |= if mandatory == 1 { NOT_WIDE } else { WORD };
        }
        let has_modrm = entry >> MODRM & 1 != 0;
        let shapes = match (has_modrm, entry & BYTES != 0) {
            (true, false) => 0,
            (true, true) => 0x100,
            (false, _) => 0x200,
        };
        let mut named = (entry >> OPCODE_REGISTER & 1) << (opcode & 7);
        if entry & BYTES != 0 {
            named |= named >> 4;
        }
        plain |= named << NAMED | (entry & IMPLICIT) >> RAX << HIDDEN | shapes << SHAPE;
        table[n - 1] = plain;
    }
    table
};

/// The form: ModRM.reg, and 8 more where the other operand is a register.
pub(super) const FORM: u32 = 24;
/// The operand in memory is relative to RIP.
pub(super) const RELATIVE: u32 = 1 << 28;
/// There is an operand in memory, or the address of one.
const MEMORY: u32 = 1 << 29;

/// By ModRM, like [`SHAPES`], with forms: of usual opcodes; then of those on bytes, where register 4 may be ah and so for
/// the three behind it; then of those without ModRM. The last quarter is not
/// used.
pub(super) static PLAIN_SHAPES: [u32; 4 * 256] = {
    let mut table = [0; 4 * 256];
    let mut modrm = 0;
    while modrm < 256 {
        let shape = SHAPES[modrm];
        let relative = if modrm & 0xc7 == 5 { RELATIVE } else { 0 };
        let form = (modrm as u32 >> 3 & 7) | ((modrm >= 0xc0) as u32) << 3;
        let memory = if modrm < 0xc0 { MEMORY } else { 0 };
        table[modrm] = shape | form << FORM | relative | memory;
        let parts = if modrm < 0xc0 { 0xf0 } else { 0xf0f0 };
        table[0x100 + modrm] = table[modrm] | (shape & parts) >> 4;
        modrm += 1;
    }
    table
};

/// By first byte: 4 times the mandatory prefix that it is, or 1 if it is a REX prefix.
static FIRST: [u8; 256] = {
    let mut table = [0; 256];
    let mut rex = 0x40;
    while rex < 0x50 {
        table[rex] = 1;
        rex += 1;
    }
    (table[0x66], table[0xf3], table[0xf2]) = (4, 8, 12);
    table
};

/// The length of the instruction at the start of the window if it is plain; 0 if it is not, or may not be.
///
/// A plain instruction goes on to the next one. It has no operand that is relative to RIP, no immediate operand in
/// `addresses`, and names no register of interest, except that it may access memory at an address that is relative to
/// the stack. `harmless` tells of such an access, by its base register and displacement, whether it may be passed over.
#[inline(always)]
pub(crate) fn plain_len(
    window: &[u8; WINDOW],
    interest: Interest,
    addresses: &Range<u64>,
    harmless: impl Fn(u8, i32) -> bool,
) -> usize {
    let mut bytes = first_bytes(window);
    // The opcode's position, and what precedes it.
    let (mut at, mut table, mut rex) = (0, 0, 0);
    let mut first = FIRST[usize::from(bytes as u8)];
    if first > 1 {
        (bytes, at, table) = (bytes >> 8, 1, usize::from(first) * 128);
        first = FIRST[usize::from(bytes as u8)];
    }
    if first != 0 {
        rex = bytes as u8;
        (bytes, at) = (bytes >> 8, at + 1);
    }
    if bytes as u8 == 0x0f {
        (bytes, at, table) = (bytes >> 8, at + 1, table + 256);
    }
    let entry = PLAIN[(table + usize::from(bytes as u8)) % PLAIN.len()];
    let modrm = (bytes >> 8) as u8;
    let shape = PLAIN_SHAPES[((entry >> SHAPE) as usize + usize::from(modrm)) % PLAIN_SHAPES.len()];
    // A second prefix is taken for a REX prefix here.
    if entry >> (shape >> FORM & 15) & 1 == 0 || first > 1 || shape & RELATIVE != 0 {
        return 0;
    }
    let mut len = at + (entry >> BASE_LEN & 0xf) as usize + (shape >> LEN & 0xf) as usize;
    let (reg, rm) = (shape & 0xff, shape >> 8 & 0xff | (entry >> NAMED) as u32 & 0xff);
    let reg = reg << (u32::from(rex & R) * 2) | (entry >> HIDDEN) as u32 & 0xff;
    let rm = rm << (u32::from(rex & B) * 8);
    let (mut base, mut index) = (rm, 0);
    if shape & SIB != 0 {
        let sib = (bytes >> 16) as u8;
        let number = sib >> 3 & 7 | (rex & X) << 2;
        index = if number == RSP { 0 } else { 1 << number };
        base = 1 << (sib & 7 | (rex & B) << 3);
        if shape & SIB_0 != 0 && sib & 7 == 5 {
            (base, len) = (0, len + 4);
        }
    }
    let (stack, others) = (u32::from(interest.stack), u32::from(interest.others));
    if (reg | base | index) & (stack | others) != 0 {
        let has_memory = shape & MEMORY != 0;
        if !has_memory || (reg | base | index) & others != 0 || reg & stack != 0 {
            return 0;
        }
        // What is relative to another register as well may be anywhere.
        if index == 0 {
            let behind = at + 2 + usize::from(shape & SIB != 0);
            let displacement = match modrm >> 6 {
                0 => 0,
                1 => i32::from(window[behind % WINDOW] as i8),
                _ => word(window, behind),
            };
            if !harmless(base.trailing_zeros() as u8, displacement) {
                return 0;
            }
        }
    }
    if entry & (WORD | NOT_WIDE) != 0 {
        if entry & NOT_WIDE != 0 && rex & W != 0 {
            return 0;
        }
        if entry & WORD != 0 && !addresses.is_empty() && is_address(window, len, addresses) {
            return 0;
        }
    }
    len
}
