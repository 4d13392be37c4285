//! Decodes one common instruction: its length, its class and the registers that it names.

use crate::x86::predecode::fields::{B, CLASSES, Class, LEN, R, RSP, SHAPES, SIB, SIB_0, W, WINDOW, X, word};
use crate::x86::predecode::tables;
use crate::x86::predecode::tables::{
    BYTES, CLASS, IMM, IMM_OF_TEST, IMMZ, IMPLICIT, LEGACY, MODRM, ODD, OPCODE_REGISTER, OPCODES, PREFIXES,
};

/// An instruction that [`predecode`] has recognised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Predecoded<'w> {
    /// The bytes from the instruction on.
    pub(crate) window: &'w [u8; WINDOW],
    /// Its class: where control continues after it.
    pub(crate) class: Class,
    /// Its length, in bytes.
    pub(crate) len: u8,
    /// The offset of the first byte after the opcode.
    at: u8,
    /// The REX prefix, or 0 if there is none.
    pub(crate) rex: u8,
    /// Whether a prefix turns 32-bit operands into 16-bit operands.
    pub(crate) has_short_operands: bool,
    /// The opcode's entry in [`OPCODES`].
    pub(crate) entry: u64,
    /// The ModRM byte. If there is none, this is a value that represents register operands.
    modrm: u8,
    /// The entry in [`SHAPES`] for the ModRM byte, or for the register in the opcode.
    pub(crate) shape: u32,
}

/// The base register of a memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// There is no memory operand, or its address has an index or no base register.
    None,
    /// The operand is relative to RIP.
    Rip,
    /// The operand is relative to this register, by its number.
    Register(u8),
}

/// Decodes the instruction at the start of the window. Returns `None` if the instruction is not one of those
/// that the tables describe.
///
/// Processors cannot predict which instruction comes next, so this function has few branches that depend on
/// the instruction.
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
        // A `mov` may have an immediate operand of eight bytes.
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

/// Skips legacy prefixes. Returns the offset of the first byte after them, and the mandatory prefix among
/// them: 0 for none, 1 for 66, 2 for f3 and 3 for f2.
fn skip_prefixes(window: &[u8; WINDOW]) -> Option<(usize, u32)> {
    /// The most prefixes that are skipped. With more, the instruction might be too long.
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

impl Predecoded<'_> {
    /// Returns the bytes of a direct branch's displacement, which are the instruction's last ones.
    #[inline(always)]
    pub(crate) fn width(&self) -> u8 {
        self.len - self.at
    }

    /// Returns the address that a direct branch or a RIP-relative operand refers to, for an instruction at
    /// `ip`.
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

    /// Returns ModRM's mode, reg and rm.
    #[inline(always)]
    pub(crate) fn modrm(&self) -> (u8, u8, u8) {
        (self.modrm >> 6, self.modrm >> 3 & 7, self.modrm & 7)
    }

    /// Returns the SIB byte's index and base.
    #[inline(always)]
    fn sib(&self) -> (u8, u8) {
        let sib = self.window[usize::from(self.at + 1) % WINDOW];
        (self.number(X, sib >> 3 & 7), sib & 7)
    }

    /// Returns whether the memory operand is relative to RIP.
    #[inline(always)]
    pub(crate) fn is_relative(&self) -> bool {
        self.modrm & 0xc7 == 5
    }

    /// Returns the last byte of the opcode.
    #[inline(always)]
    pub(crate) fn opcode(&self) -> u8 {
        self.window[usize::from(self.at - 1) % WINDOW]
    }

    /// Returns the register that is a part of the opcode.
    #[inline(always)]
    pub(crate) fn opcode_register(&self) -> Option<u8> {
        (self.entry >> OPCODE_REGISTER & 1 != 0).then(|| self.number(B, self.opcode() & 7))
    }

    /// Returns the number of the register in a field. `extension` is the field's bit in the REX prefix.
    #[inline(always)]
    pub(crate) fn number(&self, extension: u8, field: u8) -> u8 {
        if self.rex & extension != 0 { field | 8 } else { field }
    }

    /// Returns the base register of the operand in memory.
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

    /// Returns the displacement of the operand in memory.
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

    /// Returns the general registers that the instruction may use, wholly or in part, as bits by their
    /// numbers. For a branch there are none.
    #[inline(always)]
    pub(crate) fn registers(&self) -> u16 {
        self.named(true)
    }

    /// Returns the same set without the registers that only form an address.
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
            // In an instruction on bytes, registers 4 to 7 may be ah, ch, dh and bh.
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

    /// Returns the registers that the SIB byte names.
    #[inline(always)]
    pub(crate) fn sib_registers(&self) -> u16 {
        let (index, base) = self.sib();
        let index = if index == RSP { 0 } else { 1 << index };
        let base = if self.modrm < 0x40 && base == 5 { 0 } else { 1 << self.number(B, base) };
        index | base
    }
}
