//! The scratch registers that thunks use: rax, r10 and r11, and sets of them.

use iced_x86::{Instruction, Register};

/// r10, as a set.
pub(crate) const R10: u8 = 1;

/// r11, as a set.
pub(crate) const R11: u8 = 2;

/// r10 and r11, each with the set that contains only this register.
pub(crate) const BOTH: [(Register, u8); 2] = [(Register::R10, R10), (Register::R11, R11)];

/// rax, as a set.
pub(crate) const RAX: u8 = 4;

/// For each register of iced, the set with the scratch register that it is or is a part of.
const PART_OF: [u8; 256] = {
    let mut table = [0; 256];
    let parts = [
        (R10, [Register::R10, Register::R10D, Register::R10W, Register::R10L]),
        (R11, [Register::R11, Register::R11D, Register::R11W, Register::R11L]),
        (RAX, [Register::RAX, Register::EAX, Register::AX, Register::AL]),
        (RAX, [Register::AH; 4]),
    ];
    let mut n = 0;
    while n < 4 * parts.len() {
        table[parts[n / 4].1[n % 4] as usize] = parts[n / 4].0;
        n += 1;
    }
    table
};

/// Returns the set of scratch registers that an instruction names as operands.
pub(crate) fn named(i: &Instruction) -> u8 {
    let part_of = |register: Register| PART_OF[register as usize];
    part_of(i.op0_register())
        | part_of(i.op1_register())
        | part_of(i.op2_register())
        | part_of(i.memory_base())
        | part_of(i.memory_index())
}

/// Returns whether an instruction names r11.
pub(crate) fn names_r11(i: &Instruction) -> bool {
    named(i) & R11 != 0
}
