//! The effects of common instructions on general registers.

use crate::x86::predecode::decode::{Base, Predecoded};
use crate::x86::predecode::fields::{B, Class, R, SIB, W, word};
use crate::x86::predecode::tables::{ACCESS, Access, IMM_OF_TEST, IMMZ, ODD};

/// The effects of an instruction on general registers. Each set has a bit for each register, by its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Registers that it reads, including those that only form an address.
    pub(crate) reads: u16,
    /// Registers that it overwrites. A 32-bit instruction overwrites each register that it changes, even one
    /// that it reads, because it clears the upper half.
    pub(crate) overwrites: u16,
    /// Registers that it changes, wholly or in part.
    pub(crate) changes: u16,
}

/// The register to which an instruction writes its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// The number of the register.
    pub(crate) register: u8,
    /// The number of another register, and the number that is added to its value. `None` if the value has any
    /// other form.
    pub(crate) sum: Option<(u8, i32)>,
}

/// `xor` and `sub` of two registers. If both registers are the same, the result does not depend on its value.
const CLEARING: [u8; 4] = [0x31, 0x33, 0x29, 0x2b];
/// The number of rcx.
const RCX: u8 = 1;
/// The opcode of `movsxd`.
const MOVSXD: u8 = 0x63;
/// The opcode of the `imul` with three operands.
const IMUL: u8 = 0x69;

impl Predecoded<'_> {
    #[inline(always)]
    /// Returns how the instruction accesses its operands.
    fn access(&self) -> Access {
        const KINDS: [Access; 16] = [
            Access::None,
            Access::Store,
            Access::Load,
            Access::LoadPart,
            Access::Address,
            Access::Update,
            Access::Combine,
            Access::Compare,
            Access::Set,
            Access::Arithmetic,
            Access::Shift,
            Access::Group3,
            Access::Step,
            Access::SetNamed,
            Access::None,
            Access::None,
        ];
        if self.has_short_operands { Access::None } else { KINDS[(self.entry >> ACCESS & 15) as usize] }
    }

    /// Returns whether [`Predecoded::effects`] and [`Predecoded::result`] are known.
    #[inline(always)]
    pub(crate) fn has_effects(&self) -> bool {
        match self.class {
            Class::Next | Class::Lea => match self.access() {
                Access::None => false,
                Access::Group3 => self.modrm().1 < 4,
                _ => true,
            },
            Class::Push | Class::Pop => !self.has_short_operands,
            Class::Call | Class::Jump | Class::Conditional | Class::Return => true,
        }
    }

    /// Returns the effects of the instruction on registers, except for those on a stack pointer that no field
    /// names. [`Predecoded::has_effects`] must return true.
    pub(crate) fn effects(&self) -> Effects {
        let none = Effects::default();
        let written = |bits| Effects { overwrites: bits, changes: bits, ..none };
        let named = self.opcode_register().map_or(0, |register| 1 << register);
        match self.class {
            Class::Push => return Effects { reads: named, ..none },
            Class::Pop => return written(named),
            Class::Next | Class::Lea => {}
            Class::Call | Class::Jump | Class::Conditional | Class::Return => return none,
        }
        let (mode, reg_field, rm_field) = self.modrm();
        let reg = 1 << self.number(R, reg_field);
        // ModRM.rm names a register, or an address whose registers are read.
        let (rm, address) = match mode {
            3 => (1 << self.number(B, rm_field), 0),
            _ => (0, self.address()),
        };
        let updated = |bits, reads| {
            let overwrites = if self.rex & W == 0 { bits } else { 0 };
            Effects { reads: bits | reads, overwrites, changes: bits }
        };
        let reads_address = |effects: Effects| Effects { reads: effects.reads | address, ..effects };
        let clears = rm == reg && CLEARING.contains(&self.opcode());
        reads_address(match self.access() {
            Access::Update | Access::Combine if clears => written(rm),
            Access::Store => Effects { reads: reg, ..written(rm) },
            Access::Load => Effects { reads: rm, ..written(reg) },
            Access::LoadPart => {
                // Without a REX prefix, byte registers 4 to 7 are ah, ch, dh and bh, parts of the first four
                // registers.
                let is_high = self.opcode() & 1 == 0 && self.rex == 0 && rm_field >= 4;
                let from = if is_high { rm >> 4 } else { rm };
                Effects { reads: from, ..written(reg) }
            }
            Access::Address => written(reg),
            Access::Update => updated(rm, reg),
            Access::Combine => updated(reg, rm),
            Access::Compare => Effects { reads: reg | rm, ..none },
            Access::Set => written(rm),
            Access::Arithmetic if reg_field == 7 => Effects { reads: rm, ..none },
            Access::Group3 if reg_field < 2 => Effects { reads: rm, ..none },
            Access::Shift if self.opcode() == 0xd3 => updated(rm, 1 << RCX),
            Access::Arithmetic | Access::Shift | Access::Group3 | Access::Step => updated(rm, 0),
            Access::SetNamed => written(named),
            Access::None => none,
        })
    }

    /// Returns the registers that form the address of the memory operand.
    fn address(&self) -> u16 {
        if self.shape & SIB != 0 {
            return self.sib_registers();
        }
        if self.is_relative() { 0 } else { 1 << self.number(B, self.modrm().2) }
    }

    /// Returns the register to which the instruction writes its result, or `None` if its first operand is not
    /// a register. [`Predecoded::has_effects`] must return true.
    pub(crate) fn result(&self) -> Option<Moved> {
        let (mode, reg_field, rm_field) = self.modrm();
        let (reg, rm) = (self.number(R, reg_field), self.number(B, rm_field));
        let is_wide = self.rex & W != 0;
        let moved =
            |from| (is_wide && mode == 3 && matches!(self.opcode(), 0x89 | 0x8b)).then_some((from, 0));
        let (is_reg, sum) = match self.access() {
            Access::Store => (false, moved(reg)),
            Access::Load => (true, moved(rm)),
            Access::Address => match self.base() {
                Base::Register(base) if is_wide => (true, Some((base, self.displacement()))),
                _ => (true, None),
            },
            Access::Arithmetic => match (reg_field, self.immediate_of_arithmetic()) {
                (7, _) => return None,
                (0, number) if is_wide => (false, Some((rm, number))),
                (5, number) if is_wide => (false, Some((rm, number.wrapping_neg()))),
                _ => (false, None),
            },
            Access::Group3 if reg_field < 2 => return None,
            Access::LoadPart | Access::Combine => (true, None),
            Access::Update | Access::Set | Access::Shift | Access::Group3 | Access::Step => (false, None),
            Access::SetNamed => {
                return self.opcode_register().map(|register| Moved { register, sum: None });
            }
            Access::Compare | Access::None => return None,
        };
        match (is_reg, mode) {
            (true, _) => Some(Moved { register: reg, sum }),
            (false, 3) => Some(Moved { register: rm, sum }),
            (false, _) => None,
        }
    }

    /// Returns the immediate operand of opcodes 81 and 83.
    fn immediate_of_arithmetic(&self) -> i32 {
        let end = usize::from(self.len);
        if self.opcode() == 0x83 { i32::from(self.window[end - 1] as i8) } else { word(self.window, end - 4) }
    }

    /// Returns the size of the memory operand in bytes. [`Predecoded::has_effects`] must return true.
    pub(crate) fn memory_len(&self) -> i32 {
        match (self.access(), self.opcode()) {
            (Access::LoadPart, opcode) if opcode & 1 == 0 => 1,
            (Access::LoadPart, _) => 2,
            (Access::Load, MOVSXD) => 4,
            _ if self.rex & W != 0 => 8,
            _ => 4,
        }
    }

    /// Returns whether the instruction is a 64-bit `mov` to a register.
    pub(crate) fn is_wide_load(&self) -> bool {
        self.access() == Access::Load && self.opcode() == 0x8b && self.rex & W != 0
    }

    /// Returns whether the instruction is a 32-bit `lea`.
    pub(crate) fn is_narrow_lea(&self) -> bool {
        self.access() == Access::Address && self.class != Class::Lea
    }

    /// Returns the second operand, if it is an immediate operand that may be an address. A 32-bit operand of
    /// a 64-bit instruction is extended. With `wide`, only an operand of 64 bits is returned.
    #[inline(always)]
    pub(crate) fn immediate(&self, wide: bool) -> Option<u64> {
        let is_test = self.entry & IMM_OF_TEST != 0 && self.opcode() & 1 != 0 && self.modrm().1 < 2;
        let is_operand = self.entry & IMMZ != 0 || is_test;
        let is_short = self.has_short_operands && self.rex & W == 0;
        if self.class != Class::Next || !is_operand || is_short || self.opcode() == IMUL {
            return None;
        }
        let (end, is_wide) = (usize::from(self.len), self.rex & W != 0);
        if self.entry & ODD != 0 && !is_test && is_wide {
            let [low, high] = [8, 4].map(|before| u64::from(word(self.window, end - before) as u32));
            return Some(low | high << 32);
        }
        let value = word(self.window, end - 4);
        (!wide).then_some(if is_wide { i64::from(value) as u64 } else { u64::from(value as u32) })
    }
}
