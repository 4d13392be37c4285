//! The code of a thunk from its exit label on, and the islands behind it.

use crate::x86::scratch::{R10, R11};
use crate::x86::template::encode::{branch, load, mem, store};
use crate::x86::template::{FREE_BYTE, Hole, INTERNED_BYTE, LINK, RETURN, STATE_BYTE, Target, Template};
use gprofinject_abi::plan::{ISLAND, LEFT, NOTE};
use iced_x86::{Code, Instruction, MemoryOperand, Register};

/// Branches out of thunks with an exit are short and lead to *islands*, which are near jumps after the exit's
/// `ret`. This saves eight bytes on the path of each call.
const ISLANDS: [Target; 3] = [Target::Miss, Target::Outside, Target::Exit];

/// The size in bytes of the islands and of the code after them, which handles the return of a frame with a link.
pub(super) const BEHIND_EXIT: usize = ISLANDS.len() * ISLAND as usize + NOTE as usize;

/// Where the exit code saves r11, as an offset from the CFA. The exit code's own return slot is at CFA - 8.
const EXIT_SAVED_R11: i64 = -16;

/// Where the exit code saves rax.
const EXIT_SAVED_RAX: i64 = -24;

/// What the code of an exit and [`Template::note`] know of each other.
pub(super) struct Exit {
    /// The register that contains the address of the cell.
    cell: Register,
    /// A register whose contents are not needed any more.
    free: Register,
    /// The offset of the displacement of the branch to [`Template::note`].
    to_note: u32,
    /// The offset to which that code jumps back, where the return address is pushed.
    push: u32,
}

impl Template {
    /// Adds the code from the exit label on. rsp is the CFA, [rsp-8] is the return slot, and any register
    /// except those in `dead` may hold a result.
    pub(super) fn leave(&mut self, dead: u8) -> Exit {
        let (cfa, other) = match dead & (R10 | R11) {
            0 | R11 => (Register::RAX, Register::R11),
            R10 => (Register::RAX, Register::R10),
            _ => (Register::R10, Register::R11),
        };
        let (keep_rax, keep_r11) = (cfa == Register::RAX, dead & (R10 | R11) == 0);
        if keep_r11 {
            self.put(store(Register::RSP, EXIT_SAVED_R11, Register::R11), None);
        }
        if keep_rax {
            self.put(store(Register::RSP, EXIT_SAVED_RAX, Register::RAX), None);
        }
        self.put(Instruction::with2(Code::Mov_r64_rm64, cfa, Register::RSP), None);
        self.find_cell(cfa, other, Target::Exit, true);
        // The exit is recorded before the cell says that the frame is gone. Until then, the frame counts as
        // entered.
        let linked = Instruction::with2(Code::Cmp_rm32_imm8, mem(cfa, LINK), LEFT as i32);
        self.put(linked, None);
        let to_note = self.short_branch(Code::Ja_rel8_64);
        let push = self.here();
        self.put(Instruction::with1(Code::Push_rm64, mem(cfa, RETURN)), None);
        self.pushed = self.here();
        self.put(Instruction::with2(Code::Mov_rm8_imm8, mem(cfa, STATE_BYTE), FREE_BYTE), None);
        if keep_r11 {
            self.put(load(Register::R11, Register::RSP, EXIT_SAVED_R11 + 8), None);
        }
        if keep_rax {
            self.put(load(Register::RAX, Register::RSP, EXIT_SAVED_RAX + 8), None);
        }
        self.put(Ok(Instruction::with(Code::Retnq)), None);
        Exit { cell: cfa, free: other, to_note, push }
    }

    /// Adds a short branch to an island.
    pub(super) fn by_island(&mut self, code: Code, target: Target) {
        // The displacement is the last byte. It is filled in when the island is added.
        let hole = self.short_branch(code);
        self.to_islands.push((hole, target));
    }

    /// Adds the islands.
    pub(super) fn islands(&mut self) {
        for target in ISLANDS {
            let island = self.here();
            self.put(branch(Code::Jmp_rel32_64), Some(Hole::Branch(target)));
            debug_assert_eq!(self.here() - island, ISLAND);
            for &(hole, _) in self.to_islands.iter().filter(|(_, to)| *to == target) {
                // A test makes the thunks of all kinds and follows these branches.
                self.bytes[hole as usize] = (island - hole - 1) as u8;
            }
        }
    }

    /// Adds the code for a cell that is not that of a standard frame without a link. If the frame is a standard one, it records
    /// the exit and jumps back. Otherwise it leads to the slow path.
    pub(super) fn note(&mut self, exit: &Exit) {
        self.lands(exit.to_note);
        let start = self.here();
        // The comparison is longer by a byte with r10 than with rax.
        if exit.cell == Register::RAX {
            self.put(Ok(Instruction::with(Code::Nopd)), None);
        }
        let interned = Instruction::with2(Code::Cmp_rm8_imm8, mem(exit.cell, STATE_BYTE), INTERNED_BYTE);
        self.put(interned, None);
        let island = start - ISLAND;
        self.put(Instruction::with_branch(Code::Jae_rel8_64, island.into()), None);
        // The newest frame is now the one to which the link leads.
        let low = if exit.free == Register::R11 { Register::R11D } else { Register::R10D };
        self.put(Instruction::with2(Code::Mov_r32_rm32, low, mem(exit.cell, LINK)), None);
        let caller = MemoryOperand::with_base_index_scale_displ_size(Register::RSP, exit.free, 8, -8, 1);
        self.put(Instruction::with2(Code::Lea_r64_m, exit.free, caller), None);
        self.note_last(exit.free);
        self.put(Instruction::with_branch(Code::Jmp_rel8_64, exit.push.into()), None);
        debug_assert_eq!(self.here() - start, NOTE);
    }

    /// Returns whether all branches to islands reach them.
    pub(super) fn reaches_islands(&self) -> bool {
        self.to_islands.iter().all(|&(hole, _)| self.bytes[hole as usize] < 0x80)
    }
}
