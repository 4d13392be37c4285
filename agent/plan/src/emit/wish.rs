//! What is wanted of thunks.

use super::layout::LOOP_CHECK;
use crate::registers::{R10, R11, Registers};
use crate::relocate;
use crate::slots::Home;
use crate::tactic::Hook;
use crate::template::{Kind, LINE, Second};

/// What a hooked function's thunk must be like.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    pub both: bool,
    /// Nothing can be charged to its frame: see [`gprofinject_abi::plan::LEAF`].
    pub leaf: bool,
    /// Its first instruction may be reached by an indirect jump of its own.
    pub loops: bool,
    /// Its first instructions can be copied as they are.
    pub movable: bool,
    pub registers: Registers,
}

impl Wish {
    pub(super) fn kind(self, home: Home) -> Kind {
        Kind {
            both: self.both,
            hashed: home.mask != 0,
            masked: home.mask != 0 && home.is_masked(),
            narrow: home.mask != 0 && i8::try_from(home.mask).is_ok(),
            keep_rax: !self.registers.rax_dead,
            second: match self.registers.dead_on_entry() {
                0 => Second::Kept,
                R10 => Second::R10,
                R11 => Second::R11,
                _ if self.registers.rax_dead => Second::R11,
                _ => Second::Free,
            },
            dead_on_exit: if self.both { self.registers.dead_on_exit() } else { 0 },
        }
    }

    pub(super) fn is_checked(self) -> bool {
        self.loops && self.both
    }

    /// Bytes that the function's thunk takes at most, behind the template.
    pub(super) fn room(self, hook: &Hook) -> usize {
        let relocated = hook.relocated as usize;
        let check = if self.is_checked() { LOOP_CHECK } else { 0 };
        // Relocation grows an instruction of two bytes to nine at most (jrcxz), and a call to fifty.
        check + LINE + if self.movable { relocated + relocate::JUMP } else { relocated * 5 + 64 }
    }
}
