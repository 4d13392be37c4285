//! Encodes single instructions into a template, and makes their operands.

use crate::x86::template::{Hole, Template};
use iced_x86::{Code, Encoder, Instruction, MemoryOperand, Register};

impl Template {
    /// Returns the offset of the next instruction.
    pub(super) fn here(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Adds an instruction, which may have a hole.
    pub(super) fn put(&mut self, instruction: Made, hole: Option<Hole>) {
        // The instructions are constants of the planner, and a test encodes all templates, so this cannot fail.
        let Ok(instruction) = instruction else { return };
        let start = self.bytes.len();
        let mut encoder = Encoder::new(64);
        if encoder.encode(&instruction, start as u64).is_err() {
            return;
        }
        let offsets = encoder.get_constant_offsets();
        self.bytes.extend_from_slice(&encoder.take_buffer());
        if let Some(hole) = hole {
            let at = match hole {
                Hole::Tls | Hole::Slot | Hole::SlotAndSite => offsets.displacement_offset(),
                Hole::Number | Hole::Mask | Hole::NarrowMask | Hole::Multiplier | Hole::Shift => {
                    offsets.immediate_offset()
                }
                Hole::Branch(_) | Hole::Header(_) => self.bytes.len() - start - 4,
            };
            self.holes.push(((start + at) as u32, hole));
        }
    }

    /// Adds an instruction on a register and a word of the thread.
    pub(super) fn put_with_word(&mut self, code: Code, register: Register, word: i64) {
        let word = thread_word(self.role.segment(), word);
        self.put(Instruction::with2(code, register, word), Some(Hole::Tls));
    }

    /// Adds a short branch, and returns the offset of its displacement.
    pub(super) fn short_branch(&mut self, code: Code) -> u32 {
        self.put(Instruction::with_branch(code, self.bytes.len() as u64), None);
        self.here() - 1
    }

    /// Lets the short branch with this displacement lead to the next instruction.
    pub(super) fn lands(&mut self, displacement: u32) {
        self.bytes[displacement as usize] = (self.here() - displacement - 1) as u8;
    }
}

/// An instruction, or the error of the encoder.
pub(super) type Made = Result<Instruction, iced_x86::IcedError>;

/// Returns a memory operand with the shortest displacement.
pub(super) fn mem(base: Register, displacement: i64) -> MemoryOperand {
    if displacement == 0 {
        return MemoryOperand::with_base(base);
    }
    MemoryOperand::with_base_displ(base, displacement)
}

/// Returns a memory operand whose displacement always takes four bytes.
pub(super) fn wide(base: Register, displacement: i64) -> MemoryOperand {
    MemoryOperand::with_base_displ_size(base, displacement, 8)
}

/// Returns the operand `segment:[displacement]`, whose displacement takes four bytes.
pub(super) fn thread_word(segment: Register, displacement: i64) -> MemoryOperand {
    MemoryOperand::new(Register::None, Register::None, 1, displacement, 8, false, segment)
}

/// Returns a word of the [`ArenaHeader`] as an operand, whose displacement is a hole.
pub(super) fn header_word() -> MemoryOperand {
    MemoryOperand::with_base_displ_size(Register::RIP, 0x1000_0000, 8)
}

/// Makes a load.
pub(super) fn load(register: Register, base: Register, displacement: i64) -> Made {
    Instruction::with2(Code::Mov_r64_rm64, register, mem(base, displacement))
}

/// Makes a store.
pub(super) fn store(base: Register, displacement: i64, register: Register) -> Made {
    Instruction::with2(Code::Mov_rm64_r64, mem(base, displacement), register)
}

/// Makes a near branch, whose displacement is a hole.
pub(super) fn branch(code: Code) -> Made {
    // The target is far away, so that the encoder does not choose a short form.
    Instruction::with_branch(code, 0x1000_0000)
}
