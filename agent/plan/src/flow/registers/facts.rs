//! How a function uses the scratch registers. Sets of registers are those of [`crate::x86::scratch`].

use crate::x86::scratch::{R10, R11};

/// How a function uses the scratch registers. One pass over its instructions finds most of this;
/// [`changes`](Registers::changes), [`takes_r10`](Registers::takes_r10), [`kept`](Registers::kept) and
/// [`leaves`](Registers::leaves) then take the whole program into account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// Whether rax need not be preserved on entry.
    pub rax_dead: bool,
    /// Registers that the function changes, itself or through a function that it calls.
    pub changes: u8,
    /// Registers that an instruction of the function names as an operand.
    pub names: u8,
    /// Whether the function calls or jumps through a pointer.
    pub follows_pointers: bool,
    /// Whether the function calls unknown code.
    pub calls_unknown: bool,
    /// Registers in which a caller may keep a value that it needs after the call.
    pub kept: u8,
    /// Whether the function takes a pointer in rax and so preserves all other registers: see
    /// [`crate::flow::registers::argument`].
    pub takes_rax: bool,
    /// Whether r11 is read before it is written.
    pub takes_r11: bool,
    /// Whether r10, the static chain of nested functions, may be an input: the function reads it
    /// somewhere, or continues at an unknown address, or continues in a function whose input it may be.
    pub takes_r10: bool,
    /// Whether the function reads r10 before it writes it, on some path, or passes it on to such a
    /// function by a call or jump.
    pub chain: bool,
    /// Whether r10 need not be preserved on entry.
    pub r10_dead: bool,
    /// Registers that the function pushes before it writes them, and so restores (clang's
    /// `preserve_most`). Its other uses of them do not concern its callers.
    pub saves: u8,
    /// Registers that hold a value that no instruction has used when the function returns, or when it
    /// jumps to a function with such a register; and those that a caller reads right after a call of the function.
    pub leaves: u8,
}

impl Registers {
    /// Every register must be preserved: functions take arguments in all of them, as Go's do.
    pub const ALL_INPUTS: Registers = Registers {
        rax_dead: false,
        changes: 0,
        names: R10 | R11,
        follows_pointers: true,
        calls_unknown: false,
        kept: R10 | R11,
        takes_rax: true,
        takes_r11: true,
        takes_r10: true,
        chain: true,
        r10_dead: false,
        saves: 0,
        leaves: R10 | R11,
    };

    /// Returns the registers that need not be preserved on entry.
    pub fn dead_on_entry(self) -> u8 {
        if self.takes_rax {
            return 0;
        }
        let r11 = if self.takes_r11 { 0 } else { !self.kept & R11 };
        let r10 = if self.takes_r10 { 0 } else { !self.kept & R10 };
        r11 | r10 | if self.r10_dead { R10 } else { 0 }
    }

    /// Returns the registers that need not be preserved on exit.
    ///
    /// A function that takes arguments in them is hand-written and may return results in them, also ones that it has stored as well, as
    /// OpenSSL's `__rsaz_512_subtract` does.
    pub fn dead_on_exit(self) -> u8 {
        if self.takes_rax || self.takes_r11 {
            return 0;
        }
        let results = self.leaves | if self.chain { R10 } else { 0 };
        !self.kept & !results & (R10 | R11)
    }
}
