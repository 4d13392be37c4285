//! What a seccomp filter answers to a system call of which not everything is known.
//!
//! A filter is a program of classic BPF that reads `struct seccomp_data` (seccomp(2)): the number of the call, the
//! architecture, the address of the instruction, and six arguments. It has no loops, because all jumps lead forward. So one
//! walk over its instructions, in their order, finds all that can happen: the walk keeps for each instruction what is known of
//! the registers there, on all ways that lead to it. Where ways meet on which a register differs, its value is unknown, and a
//! branch on an unknown value leads both ways.

use serde::{Deserialize, Serialize};

/// One instruction of a filter, as `struct sock_filter` has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Instruction {
    pub(crate) code: u16,
    pub(crate) jt: u8,
    pub(crate) jf: u8,
    pub(crate) k: u32,
}

/// A filter's program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Filter(pub(crate) Vec<Instruction>);

/// A system call, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) number: u32,
    /// `None` is an argument that may have any value.
    pub(crate) arguments: [Option<u64>; 6],
}

impl Call {
    /// Returns a call with any arguments.
    pub(crate) fn any(number: u32) -> Call {
        Call { number, arguments: [None; 6] }
    }

    /// Returns the 32-bit word at an offset of `struct seccomp_data`, if it is known.
    fn word(&self, offset: u32) -> Option<u32> {
        /// AUDIT_ARCH_X86_64.
        const ARCHITECTURE: u32 = 0xc000_003e;
        let half = |argument: Option<u64>| {
            let argument = argument?;
            Some(if offset.is_multiple_of(8) { argument } else { argument >> 32 } as u32)
        };
        match offset {
            0 => Some(self.number),
            4 => Some(ARCHITECTURE),
            // The address of the instruction.
            8 | 12 => None,
            _ => half(*self.arguments.get(offset.checked_sub(16)? as usize / 8)?),
        }
    }
}

/// What is known of the registers before an instruction: `a`, `x`, and the words of the scratch memory.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Registers {
    a: Option<u32>,
    x: Option<u32>,
    memory: [Option<u32>; MEMORY],
}

const MEMORY: usize = 16;

impl Registers {
    /// All are 0 at the beginning.
    const FIRST: Registers = Registers { a: Some(0), x: Some(0), memory: [Some(0); MEMORY] };

    /// Returns what is known on both of two ways.
    fn common(self, other: Registers) -> Registers {
        let both = |one: Option<u32>, other: Option<u32>| one.filter(|_| one == other);
        let mut memory = self.memory;
        for (word, other) in memory.iter_mut().zip(other.memory) {
            *word = both(*word, other);
        }
        Registers { a: both(self.a, other.a), x: both(self.x, other.x), memory }
    }
}

/// Where control goes from an instruction, as distances to those behind the next one.
enum Next {
    Return { is_allowed: bool },
    Jump(u32),
    Either(u32, u32),
}

// linux/bpf_common.h: classes, sizes and modes of loads, operations, sources.
const LD: u16 = 0x00;
const LDX: u16 = 0x01;
const ST: u16 = 0x02;
const STX: u16 = 0x03;
const ALU: u16 = 0x04;
const JMP: u16 = 0x05;
const RET: u16 = 0x06;
const MISC: u16 = 0x07;
const IMM: u16 = 0x00;
const ABS: u16 = 0x20;
const MEM: u16 = 0x60;
const LEN: u16 = 0x80;
const BY_X: u16 = 0x08;
const BY_A: u16 = 0x10;
const TXA: u16 = 0x80;

/// The size in bytes of `struct seccomp_data`.
const DATA: u32 = 64;

impl Filter {
    /// Returns whether a filter lets the kernel make the call, whatever the unknown parts of it are. A filter that is not one
    /// of seccomp's allows nothing.
    pub(crate) fn allows(&self, call: &Call) -> bool {
        let mut before: Vec<Option<Registers>> = vec![None; self.0.len()];
        match before.first_mut() {
            Some(first) => *first = Some(Registers::FIRST),
            None => return false,
        }
        for (at, instruction) in self.0.iter().enumerate() {
            let Some(mut registers) = before.get(at).copied().flatten() else { continue };
            let Some(next) = instruction.step(&mut registers, call) else { return false };
            let ways = match next {
                Next::Return { is_allowed: true } => continue,
                Next::Return { is_allowed: false } => return false,
                Next::Jump(distance) => [distance, distance],
                Next::Either(one, other) => [one, other],
            };
            for distance in ways {
                let to = usize::try_from(distance).ok().and_then(|distance| (at + 1).checked_add(distance));
                let Some(place) = to.and_then(|to| before.get_mut(to)) else { return false };
                *place = Some(place.map_or(registers, |there| there.common(registers)));
            }
        }
        true
    }
}

impl Instruction {
    /// Carries out the instruction. Returns `None` if a filter of seccomp's cannot have it.
    fn step(&self, registers: &mut Registers, call: &Call) -> Option<Next> {
        let slot = usize::try_from(self.k).ok()?;
        let by = if self.code & BY_X == 0 { Some(self.k) } else { registers.x };
        match self.code & 0x07 {
            LD => {
                registers.a = match self.code & !0x07 {
                    ABS if self.k.is_multiple_of(4) && self.k < DATA => call.word(self.k),
                    LEN => Some(DATA),
                    IMM => Some(self.k),
                    MEM => *registers.memory.get(slot)?,
                    _ => return None,
                }
            }
            LDX => {
                registers.x = match self.code & !0x07 {
                    LEN => Some(DATA),
                    IMM => Some(self.k),
                    MEM => *registers.memory.get(slot)?,
                    _ => return None,
                }
            }
            ST if self.code == ST => *registers.memory.get_mut(slot)? = registers.a,
            STX if self.code == STX => *registers.memory.get_mut(slot)? = registers.x,
            ALU => registers.a = self.computed(registers.a, by)?,
            JMP => return self.jump(registers.a, by),
            RET => {
                let action = match self.code & !0x07 {
                    0 => Some(self.k),
                    BY_A => registers.a,
                    _ => return None,
                };
                return Some(Next::Return { is_allowed: action.is_some_and(is_allowing) });
            }
            MISC => match self.code & !0x07 {
                0 => registers.x = registers.a,
                TXA => registers.a = registers.x,
                _ => return None,
            },
            _ => return None,
        }
        Some(Next::Jump(0))
    }

    /// Returns the result of an arithmetic instruction, as far as it is known. The outer `None` is an instruction that no filter can
    /// have, or that ends it.
    fn computed(&self, a: Option<u32>, by: Option<u32>) -> Option<Option<u32>> {
        let with = |operation: fn(u32, u32) -> u32| Some(a.zip(by).map(|(a, by)| operation(a, by)));
        match self.code & 0xf0 {
            0x00 => with(u32::wrapping_add),
            0x10 => with(u32::wrapping_sub),
            0x20 => with(u32::wrapping_mul),
            // The kernel ends a filter that divides by 0, and the process with it.
            0x30 => match by? {
                0 => None,
                by => Some(a.map(|a| a / by)),
            },
            0x40 => with(|a, by| a | by),
            // Of an unknown word, a mask may leave nothing.
            0x50 if by == Some(0) => Some(Some(0)),
            0x50 => with(|a, by| a & by),
            0x60 => Some(a.zip(by).and_then(|(a, by)| a.checked_shl(by))),
            0x70 => Some(a.zip(by).and_then(|(a, by)| a.checked_shr(by))),
            0x80 => Some(a.map(u32::wrapping_neg)),
            0xa0 => with(|a, by| a ^ by),
            _ => None,
        }
    }

    fn jump(&self, a: Option<u32>, by: Option<u32>) -> Option<Next> {
        let (jt, jf) = (u32::from(self.jt), u32::from(self.jf));
        let holds: fn(u32, u32) -> bool = match self.code & 0xf0 {
            0x00 => return Some(Next::Jump(self.k)),
            0x10 => |a, by| a == by,
            0x20 => |a, by| a > by,
            0x30 => |a, by| a >= by,
            0x40 => |a, by| a & by != 0,
            _ => return None,
        };
        Some(match a.zip(by).map(|(a, by)| holds(a, by)) {
            Some(true) => Next::Jump(jt),
            Some(false) => Next::Jump(jf),
            None => Next::Either(jt, jf),
        })
    }
}

/// Whether the kernel makes the call if a filter returns this. It does for SECCOMP_RET_ALLOW and SECCOMP_RET_LOG.
fn is_allowing(action: u32) -> bool {
    const ACTION: u32 = 0xffff_0000;
    const ALLOW: u32 = 0x7fff_0000;
    const LOG: u32 = 0x7ffc_0000;
    matches!(action & ACTION, ALLOW | LOG)
}

#[cfg(test)]
mod tests;
