//! What is known of a function's use of registers.

use crate::x86::scratch::{R10, R11};

/// What one pass over a function's instructions finds out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// rax need not be kept on entry.
    pub rax_dead: bool,
    /// The function changes it, itself or through what it calls.
    pub changes: u8,
    /// The function reads or writes it somewhere, by an instruction that says so.
    pub names: u8,
    /// The function calls or jumps through a pointer.
    pub follows_pointers: bool,
    /// The function calls code that is not known.
    pub calls_unknown: bool,
    /// A caller may keep a value in it that it needs behind the call.
    pub kept: u8,
    /// r11 is read before it is written.
    pub takes_r11: bool,
    /// r10, that of nested functions, may be an input: it is read somewhere, or the function goes on at an address
    /// that is not known, or in a function of which that holds.
    pub takes_r10: bool,
    /// r10 is read before it is written, on some way, or in a function to which it is passed on by a call or jump.
    pub chain: bool,
    /// r10 need not be kept on entry.
    pub r10_dead: bool,
    /// Pushed before it is written, and so given back (clang's `preserve_most`): what changes it is none of the callers'
    /// business.
    pub saves: u8,
    /// It has a value that was not used when the function returns, or goes on to one of which that holds.
    pub leaves: u8,
}

impl Registers {
    /// What need not be kept on entry.
    pub fn dead_on_entry(self) -> u8 {
        let r11 = if self.takes_r11 { 0 } else { !self.kept & R11 };
        let r10 = if self.takes_r10 { 0 } else { !self.kept & R10 };
        r11 | r10 | if self.r10_dead { R10 } else { 0 }
    }

    /// What need not be kept on exit.
    pub fn dead_on_exit(self) -> u8 {
        !self.kept & !self.leaves & (R10 | R11)
    }
}
