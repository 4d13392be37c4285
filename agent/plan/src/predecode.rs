//! Length, class and registers of common instructions, in a fraction of the time that a full decoder takes.
//!
//! Most instructions of a program tell the planner nothing but where the next one begins. [`skim`] recognises those, direct
//! branches, and `push` and `pop`, by a few lookups in tables. What it does not recognise is looked at by [`predecode`],
//! which tells what an instruction does with registers as well. Both answer only where they are certain. For the rest (rare
//! opcodes, indirect branches) the caller decodes the instruction with iced. So an opcode that is missing from the tables costs time and nothing
//! else. The tests compare the answers with iced's, for all opcodes and over whole programs.
//!
//! Source: Intel SDM volume 2: 2.1.5 (ModRM and SIB), 2.2.1 (REX), appendix A (opcode maps).

mod effects;
mod skim;
mod tables;
#[cfg(test)]
mod tests;

pub(crate) use effects::{Effects, Moved};
pub(crate) use skim::{Interest, Skimmed, skim};
use std::ops::Range;
use tables::{
    BYTES, CLASS, IMM, IMM_OF_TEST, IMMZ, IMPLICIT, LEGACY, MODRM, ODD, OPCODE_REGISTER, OPCODES, PREFIXES,
};

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

/// An instruction that [`predecode`] has recognised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Predecoded<'w> {
    window: &'w [u8; WINDOW],
    pub(crate) class: Class,
    pub(crate) len: u8,
    /// The first byte behind the opcode.
    at: u8,
    rex: u8,
    /// A prefix makes operands of 32 bits such of 16.
    has_short_operands: bool,
    /// The opcode's entry in its table.
    entry: u64,
    /// ModRM; where there is none, as with registers as operands.
    modrm: u8,
    /// In the form of [`SHAPES`].
    shape: u32,
}

/// The base register of an operand in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// There is no such operand, or its address has an index or no base.
    None,
    Rip,
    Register(u8),
}

pub(crate) const RAX: u8 = 0;
/// As an index: none.
const RSP: u8 = 4;

/// Bytes that [`predecode`] looks at: more than any instruction has.
pub(crate) const WINDOW: usize = 16;

/// By ModRM: a bit for the register that reg names, and from bit 8 on for the one that rm names, if it names one,
/// both without what a REX prefix adds; from [`LEN`] on the bytes of ModRM, SIB and displacement; [`SIB`]; and
/// [`SIB_0`].
static SHAPES: [u32; 256] = {
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

const LEN: u32 = 16;
const SIB: u32 = 1 << 20;
/// The mode is 0: where the SIB byte's base is 5, a displacement of four bytes follows instead of a register.
const SIB_0: u32 = 1 << 21;

const CLASSES: [Class; 8] = [
    Class::Next,
    Class::Lea,
    Class::Push,
    Class::Pop,
    Class::Call,
    Class::Jump,
    Class::Conditional,
    Class::Return,
];

/// Fields of a REX prefix: 64-bit operands; the fourth bits of ModRM.reg, of the index, and of the base register,
/// ModRM.rm or the opcode's register.
const W: u8 = 8;
const R: u8 = 4;
const X: u8 = 2;
const B: u8 = 1;

/// The instruction at the start of the window.
///
/// Which instruction comes next is hard to foresee, for processors as well. So there are few branches here that depend
/// on it.
#[inline(always)]
pub(crate) fn predecode(window: &[u8; WINDOW]) -> Option<Predecoded<'_>> {
    let byte = |at: usize| window[at % WINDOW];
    let (mut at, mut mandatory) = (0, 0);
    if OPCODES[usize::from(window[0])] & LEGACY != 0 {
        (at, mandatory) = skip_prefixes(window)?;
    }
    let is_rex = byte(at) & 0xf0 == 0x40;
    let rex = if is_rex { byte(at) } else { 0 };
    at += usize::from(is_rex);
    let is_long = byte(at) == 0x0f;
    at += usize::from(is_long);
    let opcode = byte(at);
    let entry = OPCODES[usize::from(is_long) << 8 | usize::from(opcode)];
    at += 1;
    let has_modrm = entry >> MODRM & 1 != 0;
    let modrm = if has_modrm { byte(at) } else { 0xc0 };
    let operands = usize::from(modrm >> 3 & 7) | usize::from(modrm >= 0xc0) << 3;
    if entry >> PREFIXES >> mandatory & entry >> operands & 1 == 0 {
        return None;
    }
    let register = (entry >> OPCODE_REGISTER & 1) << (8 + (opcode & 7));
    let shape = if has_modrm { SHAPES[usize::from(modrm)] } else { register as u32 };
    let is_base_left_out = shape & SIB_0 != 0 && byte(at + 1) & 7 == 5;
    let mut len =
        at + (shape >> LEN & 0xf) as usize + (entry >> IMM & 5) as usize + usize::from(is_base_left_out) * 4;
    let mut is_word = entry & IMMZ != 0;
    if entry & ODD != 0 {
        // A mov of eight bytes.
        len += if is_word && rex & W != 0 { 4 } else { 0 };
        if entry & IMM_OF_TEST != 0 && modrm & 0x38 == 0 {
            is_word = opcode & 1 != 0;
            len += if is_word { 4 } else { 1 };
        }
    }
    let has_short_operands = mandatory == 1;
    if has_short_operands && is_word && rex & W == 0 {
        len -= 2;
    }
    // An instruction has at most 15 bytes.
    if len >= WINDOW {
        return None;
    }
    let mut class = CLASSES[(entry >> CLASS & 7) as usize];
    if class == Class::Lea && rex & W == 0 {
        class = Class::Next;
    }
    let (len, at) = (len as u8, at as u8);
    Some(Predecoded { window, class, len, at, rex, has_short_operands, entry, modrm, shape })
}

/// Skips legacy prefixes: where the instruction goes on, and the mandatory prefix among them. 0: none; 1: 66; 2: f3; 3: f2.
fn skip_prefixes(window: &[u8; WINDOW]) -> Option<(usize, u32)> {
    /// With more the instruction might be too long.
    const MOST: usize = 4;
    let mut mandatory = 0;
    for (at, &byte) in window[..=MOST].iter().enumerate() {
        let entry = OPCODES[usize::from(byte)];
        if entry & LEGACY == 0 {
            return Some((at, mandatory));
        }
        let prefix = (entry >> PREFIXES & 0xf) as u32;
        if prefix != 0 {
            if mandatory != 0 && mandatory != prefix.trailing_zeros() {
                return None;
            }
            mandatory = prefix.trailing_zeros();
        }
    }
    None
}

/// Whether the four bytes before `end` are an address.
fn is_address(window: &[u8; WINDOW], end: usize, addresses: &Range<u64>) -> bool {
    let value = word(window, end - 4);
    addresses.contains(&u64::from(value as u32)) || addresses.contains(&(value as u64))
}

#[inline(always)]
fn first_bytes(window: &[u8; WINDOW]) -> u64 {
    u64::from_le_bytes(*window.first_chunk().unwrap_or(&[0; 8]))
}

#[inline(always)]
fn word(window: &[u8; WINDOW], at: usize) -> i32 {
    let bytes = window.get(at..).and_then(<[u8]>::first_chunk);
    i32::from_le_bytes(*bytes.unwrap_or(&[0; 4]))
}

impl Predecoded<'_> {
    /// Of a direct branch: the bytes of its displacement, the instruction's last ones.
    #[inline(always)]
    pub(crate) fn width(&self) -> u8 {
        self.len - self.at
    }

    /// What a direct branch or a RIP-relative operand of the instruction at `ip` refers to.
    #[inline(always)]
    pub(crate) fn target(&self, ip: u64) -> u64 {
        let distance = match self.class {
            Class::Next | Class::Lea => self.displacement(),
            Class::Return => 0,
            _ if self.width() == 1 => i32::from(self.window[usize::from(self.at)] as i8),
            _ => word(self.window, self.at.into()),
        };
        (ip + u64::from(self.len)).wrapping_add_signed(distance.into())
    }

    /// ModRM's mode, reg and rm.
    #[inline(always)]
    fn modrm(&self) -> (u8, u8, u8) {
        (self.modrm >> 6, self.modrm >> 3 & 7, self.modrm & 7)
    }

    /// The SIB byte's index and base.
    #[inline(always)]
    fn sib(&self) -> (u8, u8) {
        let sib = self.window[usize::from(self.at + 1) % WINDOW];
        (self.number(X, sib >> 3 & 7), sib & 7)
    }

    /// Whether an operand in memory is relative to RIP.
    #[inline(always)]
    pub(crate) fn is_relative(&self) -> bool {
        self.modrm & 0xc7 == 5
    }

    /// The opcode's last byte.
    #[inline(always)]
    fn opcode(&self) -> u8 {
        self.window[usize::from(self.at - 1) % WINDOW]
    }

    /// The register that the opcode itself names.
    #[inline(always)]
    pub(crate) fn opcode_register(&self) -> Option<u8> {
        (self.entry >> OPCODE_REGISTER & 1 != 0).then(|| self.number(B, self.opcode() & 7))
    }

    /// The register that a field and its bit in the REX prefix name.
    #[inline(always)]
    fn number(&self, extension: u8, field: u8) -> u8 {
        if self.rex & extension != 0 { field | 8 } else { field }
    }

    /// The base register of the operand in memory.
    #[inline(always)]
    pub(crate) fn base(&self) -> Base {
        match self.modrm() {
            (3, ..) => Base::None,
            (0, _, 5) => Base::Rip,
            (mode, _, 4) => match self.sib() {
                (RSP, base) if base != 5 || mode != 0 => Base::Register(self.number(B, base)),
                _ => Base::None,
            },
            (_, _, rm) => Base::Register(self.number(B, rm)),
        }
    }

    /// The displacement of the operand in memory.
    #[inline(always)]
    pub(crate) fn displacement(&self) -> i32 {
        let (mode, _, rm) = self.modrm();
        let at = usize::from(self.at) + if rm == 4 { 2 } else { 1 };
        match mode {
            1 => i32::from(self.window[at % WINDOW] as i8),
            0 if rm != 5 => 0,
            _ => word(self.window, at),
        }
    }

    /// The general registers that the instruction may use, wholly or in part: a bit for each, by its number. A branch
    /// uses none.
    #[inline(always)]
    pub(crate) fn registers(&self) -> u16 {
        self.named(true)
    }

    /// The same but for those that only make up an address.
    #[inline(always)]
    pub(crate) fn operands(&self) -> u16 {
        self.named(self.modrm >= 0xc0)
    }

    #[inline(always)]
    fn named(&self, by_rm: bool) -> u16 {
        let reg = self.shape as u16 & 0xff;
        let rm = if by_rm { self.shape as u16 >> 8 } else { 0 };
        let mut named = reg << ((self.rex & R) * 2) | rm << ((self.rex & B) * 8);
        if self.entry & (BYTES | IMPLICIT) != 0 {
            // In instructions on bytes register 4 may be ah, and so for the three behind it.
            if self.entry & BYTES != 0 && self.rex == 0 {
                named |= named >> 4;
            }
            named |= ((self.entry & IMPLICIT) >> tables::RAX) as u16;
        }
        if self.shape & SIB != 0 && by_rm {
            named |= self.sib_registers();
        }
        named
    }

    /// The registers that the SIB byte names.
    #[inline(always)]
    fn sib_registers(&self) -> u16 {
        let (index, base) = self.sib();
        let index = if index == RSP { 0 } else { 1 << index };
        let base = if self.modrm < 0x40 && base == 5 { 0 } else { 1 << self.number(B, base) };
        index | base
    }
}
