//! The effects of one instruction on one register.

use crate::x86::predecode::effects::Effects;
use iced_x86::{Instruction, InstructionInfoFactory, OpAccess, Register};

/// The effects of one instruction on one register.
pub(crate) struct Uses {
    /// Whether the instruction reads the register. A write to only a part of it counts too, because the
    /// rest stays.
    pub(crate) reads: bool,
    /// Whether the instruction overwrites the whole register, unconditionally.
    pub(crate) overwrites: bool,
    /// Whether the instruction changes the register or a part of it, perhaps only under a condition.
    pub(crate) changes: bool,
}

impl Uses {
    /// Returns whether this is the first use of the register and proves it dead: the instruction
    /// overwrites the register without reading it. `decided` is whether an earlier instruction used the
    /// register; this call updates it.
    pub(crate) fn decides(&self, decided: &mut bool) -> bool {
        let is_dead = !*decided && self.overwrites && !self.reads;
        *decided |= self.overwrites || self.reads;
        is_dead
    }

    /// Returns the effects of an instruction on the register whose bit is `register`.
    pub(crate) fn from(effects: &Effects, register: u16) -> Uses {
        Uses {
            reads: effects.reads & register != 0,
            overwrites: effects.overwrites & register != 0,
            changes: effects.changes & register != 0,
        }
    }

    /// Returns the effects of an instruction on a register, according to iced.
    pub(crate) fn of(i: &Instruction, register: Register, factory: &mut InstructionInfoFactory) -> Uses {
        let mut uses = Uses { reads: false, overwrites: false, changes: false };
        for used in factory.info(i).used_registers() {
            if used.register().full_register() != register {
                continue;
            }
            // A 32-bit write clears the upper half.
            let whole = used.register().size() >= 4;
            let access = used.access();
            uses.changes |= !matches!(
                access,
                OpAccess::None | OpAccess::NoMemAccess | OpAccess::Read | OpAccess::CondRead
            );
            match access {
                OpAccess::Write if whole => uses.overwrites = true,
                OpAccess::None | OpAccess::NoMemAccess => {}
                _ => uses.reads = true,
            }
        }
        uses
    }
}
