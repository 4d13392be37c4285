//! The effects of instructions on the stack frame, expressed as DWARF call frame instructions.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// The DWARF register number of rsp (System V ABI for x86-64, figure 3.36).
pub(crate) const RSP: u8 = 7;

/// Follows the stack frame through instructions, and writes DWARF call frame instructions for it.
#[derive(Debug)]
pub(crate) struct Frames {
    /// The distance from rsp up to the CFA, in bytes, or `None` once it is unknown.
    depth: Option<u32>,
    /// The DWARF number of a register whose value was computed from rsp, and the distance from that value up
    /// to the CFA, in bytes.
    base: Option<(u8, u32)>,
    /// A set of the registers that have been saved: one bit for each, by DWARF number.
    saved: u32,
    /// The offset in the instructions up to which `code` describes the frame.
    at: u32,
    /// The call frame instructions. The list is empty if the frame stays as it is on entry to a function.
    pub(crate) code: Vec<u8>,
}

impl Frames {
    /// Returns the state at a function's entry.
    pub(crate) fn new() -> Frames {
        Frames { depth: Some(8), base: None, saved: 0, at: 0, code: Vec::with_capacity(32) }
    }

    /// Records the effect of an instruction. `next` is the offset of the instruction that follows it, in
    /// bytes.
    pub(crate) fn step(&mut self, i: &Instruction, next: u32) {
        const CALLEE_SAVED: u32 = 1 << 3 | 1 << 6 | 0xf << 12;
        let Some(depth) = self.depth else { return };
        match i.mnemonic() {
            Mnemonic::Push => {
                self.move_by(i.stack_pointer_increment().wrapping_neg(), next);
                let register =
                    dwarf(i.op0_register()).filter(|r| i.op0_kind() == OpKind::Register && *r < 16);
                if let Some(register) = register.filter(|&r| CALLEE_SAVED & !self.saved & 1 << r != 0) {
                    self.saved |= 1 << register;
                    self.code.extend([0x80 | register, (depth / 8 + 1) as u8]); // DW_CFA_offset
                }
            }
            Mnemonic::Sub if i.op0_register() == Register::RSP && is_immediate(i) => {
                self.move_by(i.immediate(1) as i32, next);
            }
            Mnemonic::Add if i.op0_register() == Register::RSP && is_immediate(i) => {
                self.move_by((i.immediate(1) as i32).wrapping_neg(), next);
            }
            Mnemonic::Lea if from_rsp(i) && i.op0_register() == Register::RSP => {
                self.move_by((i.memory_displacement64() as i32).wrapping_neg(), next);
            }
            Mnemonic::Lea if from_rsp(i) => {
                let offset = depth.checked_add_signed((i.memory_displacement64() as i32).wrapping_neg());
                self.base = dwarf(i.op0_register()).zip(offset);
            }
            Mnemonic::Mov if i.op1_register() == Register::RSP && i.op0_kind() == OpKind::Register => {
                self.base = dwarf(i.op0_register()).map(|register| (register, depth));
            }
            // The distance from the CFA to the aligned rsp is not known. From here on the other register
            // describes the frame, if there is one.
            Mnemonic::And if i.op0_register() == Register::RSP => {
                self.depth = None;
                if let Some((register, offset)) = self.base {
                    self.advance(next);
                    self.code.extend([0x0c, register]); // DW_CFA_def_cfa
                    leb128(&mut self.code, offset.into());
                }
            }
            _ => self.move_by(i.stack_pointer_increment().wrapping_neg(), next),
        }
    }

    /// Records an emulated call at offset `at`: `call next; next: lea rsp, [rsp+8]; push [word]; jmp`.
    pub(crate) fn emulated_call(&mut self, at: u32) {
        for (by, next) in [(8, at + 5), (-8, at + 10), (8, at + 16)] {
            self.move_by(by, next);
        }
    }

    /// Records that the instruction before offset `next` has decreased rsp by `by` bytes.
    fn move_by(&mut self, by: i32, next: u32) {
        let Some(depth) = self.depth.filter(|_| by != 0) else { return };
        self.depth = depth.checked_add_signed(by);
        if let Some(depth) = self.depth {
            self.advance(next);
            self.code.push(0x0e); // DW_CFA_def_cfa_offset
            leb128(&mut self.code, depth.into());
        }
    }

    /// Advances the location to which the call frame instructions apply to offset `to`.
    fn advance(&mut self, to: u32) {
        match to - self.at {
            0 => {}
            delta @ 1..64 => self.code.push(0x40 | delta as u8), // DW_CFA_advance_loc
            delta => {
                self.code.push(0x03); // DW_CFA_advance_loc2
                self.code.extend_from_slice(&(delta as u16).to_le_bytes());
            }
        }
        self.at = to;
    }
}

/// Returns whether the second operand is an immediate operand.
fn is_immediate(i: &Instruction) -> bool {
    i.op_count() == 2 && !matches!(i.op1_kind(), OpKind::Register | OpKind::Memory)
}

/// Returns whether the memory operand is relative to rsp alone.
fn from_rsp(i: &Instruction) -> bool {
    i.memory_base() == Register::RSP && i.memory_index() == Register::None
}

/// Returns the DWARF number of a 64-bit general register.
fn dwarf(register: Register) -> Option<u8> {
    const NUMBERS: [u8; 8] = [0, 2, 1, 3, RSP, 6, 4, 5];
    if !register.is_gpr64() {
        return None;
    }
    let number = register.number();
    Some(NUMBERS.get(number).copied().unwrap_or(number as u8))
}

/// Appends a number in ULEB128.
pub(crate) fn leb128(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
