//! Uses.

use crate::x86::predecode::effects::Effects;
use iced_x86::{Instruction, InstructionInfoFactory, OpAccess, Register};

pub(crate) struct Uses {
    /// Also where only a part is written, and the rest stays.
    pub(crate) reads: bool,
    /// All of it, in any case.
    pub(crate) overwrites: bool,
    /// Some of it, perhaps.
    pub(crate) changes: bool,
}

impl Uses {
    /// Whether this is the first use that decides whether a register need not be kept, and it need not.
    pub(crate) fn decides(&self, decided: &mut bool) -> bool {
        let is_dead = !*decided && self.overwrites && !self.reads;
        *decided |= self.overwrites || self.reads;
        is_dead
    }

    /// What becomes of the registers in a set of one.
    pub(crate) fn from(effects: &Effects, register: u16) -> Uses {
        Uses {
            reads: effects.reads & register != 0,
            overwrites: effects.overwrites & register != 0,
            changes: effects.changes & register != 0,
        }
    }

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
