//! Thunk code as a template: encoded once by iced, then copied for each function with its holes filled.
//!
//! A thunk must cost well under a microsecond to make, so nothing is encoded for each function but the
//! relocated instructions that need it.

pub(crate) mod kind;

use crate::x86::scratch::{R10, R11};
use gprofinject_abi::plan::{Cell, ISLAND, LEFT, NOTE, ThreadWords, WINDOW, WINDOW_WORD};
use gprofinject_abi::region::Slot;
use iced_x86::{Code, Encoder, Instruction, MemoryOperand, Register};
use std::mem::offset_of;

pub(crate) use crate::x86::template::kind::{Kind, Second};

/// What a hole is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hole {
    /// i32 displacement: `fs:` offset of a word; the agent adds the thread pointer offset of its block.
    Tls,
    /// i32 displacement: the function's first home slot in the thread block, plus what stands there.
    Slot,
    /// The same, and behind it a u32 immediate: the lower half of the key of a tail call's slot.
    SlotAndSite,
    /// i32 displacement of a branch, relative to its end.
    Branch(Target),
    /// u32 immediate: the function's number.
    Number,
    /// u32 immediate: mask of the home slot's offset; u8 where that is enough.
    Mask,
    NarrowMask,
    /// u32 immediate: multiplier of the home slot's hash.
    Multiplier,
    /// u8 immediate: how far its product is shifted.
    Shift,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Miss,
    /// The stack pointer is outside the thread's window.
    Outside,
    /// The stack pointer is outside the thread's window on exit.
    Exit,
    Body,
}

/// Encoded bytes with holes, and the offsets of labels in them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Template {
    pub bytes: Vec<u8>,
    /// Offset of each hole's bytes.
    pub holes: Vec<(u32, Hole)>,
    /// Where the thunk goes on after its arc is counted.
    pub resume: u32,
    /// The address that the `call` leaves in the return slot; 0 in entry-only thunks.
    pub exit: u32,
    /// Where the return address has just left its slot, and where it has just come back.
    pub popped: u32,
    pub pushed: u32,
    /// Displacements of short branches to islands, and where those lead.
    to_islands: Vec<(u32, Target)>,
}

/// Branches out of thunks with an exit are short: to *islands*, near jumps behind the exit's `ret`. Eight bytes less
/// on the way of each call.
const ISLANDS: [Target; 3] = [Target::Miss, Target::Outside, Target::Exit];

/// The islands, and behind them what notes the return of a frame with a link.
const BEHIND_EXIT: usize = ISLANDS.len() * ISLAND as usize + NOTE as usize;

/// A cache line. What is on the way of each call is in as few as can be: one more costs up to a nanosecond.
pub(crate) const LINE: usize = 64;
const BLOCK: i64 = offset_of!(ThreadWords, block) as i64;
const CELLS: i64 = offset_of!(ThreadWords, cells) as i64;
const LAST: i64 = offset_of!(ThreadWords, last) as i64;
const RETURN: i64 = offset_of!(Cell, return_address) as i64;
const FUNCTION: i64 = offset_of!(Cell, function) as i64;
const LINK: i64 = offset_of!(Cell, link) as i64;
const KEY: i64 = offset_of!(Slot, key) as i64;
const COUNT: i64 = offset_of!(Slot, count) as i64;

/// Where each register that a thunk uses is kept, from the CFA. Below the return slot nothing of the
/// caller is alive, and a signal handler leaves 128 bytes below rsp alone.
const SAVED_RAX: i64 = -16;
const SAVED_R11: i64 = -24;
/// The exit code keeps them here; its own return slot is at CFA - 8.
const EXIT_SAVED_R11: i64 = -16;
const EXIT_SAVED_RAX: i64 = -24;

impl Template {
    /// Where the thunk may begin, `before` bytes behind `next` at least: with a cache line, and so that its exit code is
    /// in one, or with the exit code's.
    pub(crate) fn place(&self, next: usize, before: usize) -> usize {
        let exit = before + self.exit as usize;
        let end = before + self.bytes.len() - BEHIND_EXIT;
        if self.exit == 0 || exit / LINE == (end - 1) / LINE {
            return next.next_multiple_of(LINE);
        }
        (next + exit).next_multiple_of(LINE) - exit
    }

    /// The thunk of a function.
    ///
    /// ```text
    /// entry and exit                      entry only
    ///   mov  [rsp-8], rax                   mov  [rsp-8], rax
    ///   mov  [rsp-16], r11                  mov  [rsp-16], r11
    ///   pop  r11            ; rsp = CFA     mov  r11, [rsp]
    ///   mov  rax, fs:[block]                mov  rax, fs:[block]
    ///   cmp  [rax+slot], r11                cmp  [rax+slot], r11
    ///   jne  miss                           jne  miss
    ///   inc  qword [rax+slot+8]             inc  qword [rax+slot+8]
    /// resume:                             resume:
    ///   mov  rax, rsp                       mov  r11, [rsp-16]
    ///   mov  r11, fs:[cells]                mov  rax, [rsp-8]
    ///   xor  rax, [r11-8]   ; window      body:
    ///   cmp  rax, 64 MiB                    relocated instructions
    ///   jae  outside the window             jmp  rest of the function
    ///   lea  rax, [r11+rax*2]
    ///   mov  r11, [rsp-8]
    ///   mov  [rax], r11
    ///   mov  qword [rax+8], number
    ///   mov  fs:[last], rsp
    ///   mov  r11, [rsp-24]
    ///   mov  rax, [rsp-16]
    ///   call body
    /// exit:                 ; rsp = CFA
    ///   mov  [rsp-16], r11
    ///   mov  [rsp-24], rax
    ///   mov  rax, rsp
    ///   mov  r11, fs:[cells]
    ///   xor  rax, [r11-8]
    ///   cmp  rax, 64 MiB
    ///   jae  outside the window
    ///   lea  rax, [r11+rax*2]
    ///   cmp  dword [rax+12], 1
    ///   ja   note             ; unhooked code has called it
    /// noted:
    ///   push qword [rax]      ; the return address back into its slot
    ///   mov  [rax], rsp       ; no frame here any more
    ///   mov  r11, [rsp-8]
    ///   mov  rax, [rsp-16]
    ///   ret
    ///   jmp  miss             ; islands, where the branches above lead
    ///   jmp  outside the window
    ///   jmp  outside the window, on exit
    /// note:
    ///   mov  fs:[last], rsp
    ///   jmp  noted
    /// body:
    ///   relocated instructions
    ///   jmp  rest of the function
    /// ```
    ///
    /// rax and r11 are saved and restored only where somebody may need them; r10 stands in where that
    /// spares saving r11, or rax.
    ///
    /// With several home slots `mov rax, fs:[block]` becomes
    /// `imul eax, r11d, multiplier; shr eax, shift; and eax, mask; add rax, fs:[block]`, the first two of
    /// them `mov eax, r11d` where the known return addresses differ in the masked bits.
    ///
    /// No word of memory is both read and written on every call, so nothing makes calls wait for each
    /// other; and a signal handler may come in anywhere, because its frames have cells of their own.
    ///
    /// In the longest thunks the first island is too far from the branch to `miss`, which is a near one there.
    pub(crate) fn thunk(kind: Kind) -> Template {
        let short = Template::thunk_with(kind, true);
        if short.reaches_islands() { short } else { Template::thunk_with(kind, false) }
    }

    /// `short`: the branch to `miss` of a thunk with an exit leads to an island.
    fn thunk_with(kind: Kind, short: bool) -> Template {
        let mut t = Template::default();
        let (first, second) = (kind.second.first(), kind.second.register());
        // Displacements below are from rsp as it is at that point.
        let at_entry = 8;
        t.save(kind, at_entry);
        if kind.both {
            t.put(Instruction::with1(Code::Pop_r64, second), None);
            t.popped = t.here();
        } else {
            t.put(load(second, Register::RSP, 0), None);
        }
        if kind.hashed {
            let (slot, low) = (first.full_register32(), second.full_register32());
            let hash = Instruction::with3(Code::Imul_r32_rm32_imm32, slot, low, 0x1234_5678);
            if kind.masked {
                t.put(Instruction::with2(Code::Mov_r32_rm32, slot, low), None);
            } else {
                t.put(hash, Some(Hole::Multiplier));
                t.put(Instruction::with2(Code::Shr_rm32_imm8, slot, 0x12), Some(Hole::Shift));
            }
            if kind.narrow {
                t.put(Instruction::with2(Code::And_rm32_imm8, slot, 0x12), Some(Hole::NarrowMask));
            } else {
                let code = if slot == Register::EAX { Code::And_EAX_imm32 } else { Code::And_rm32_imm32 };
                t.put(Instruction::with2(code, slot, 0x1234_5678), Some(Hole::Mask));
            }
            t.put(with_tls(Code::Add_r64_rm64, first, BLOCK), Some(Hole::Tls));
        } else {
            t.put(with_tls(Code::Mov_r64_rm64, first, BLOCK), Some(Hole::Tls));
        }
        let key = Instruction::with2(Code::Cmp_rm64_r64, wide(first, KEY), second);
        t.put(key, Some(Hole::Slot));
        if kind.both && short {
            t.by_island(Code::Jne_rel8_64, Target::Miss);
        } else {
            t.put(branch(Code::Jne_rel32_64), Some(Hole::Branch(Target::Miss)));
        }
        t.put(Instruction::with1(Code::Inc_rm64, wide(first, COUNT)), Some(Hole::Slot));
        t.resume = t.here();
        if kind.both {
            t.fill_cell(first, second);
        }
        let below = if kind.both { 0 } else { at_entry };
        t.restore(kind, below);
        if kind.both {
            t.put(branch(Code::Call_rel32_64), Some(Hole::Branch(Target::Body)));
            t.exit = t.here();
            let (to_note, noted) = t.leave(kind.dead_on_exit);
            t.islands();
            t.note(to_note, noted);
        }
        t
    }

    fn by_island(&mut self, code: Code, target: Target) {
        // The displacement is the last byte, and filled in when the island is there.
        self.put(Instruction::with_branch(code, self.bytes.len() as u64), None);
        self.to_islands.push((self.here() - 1, target));
    }

    fn islands(&mut self) {
        for target in ISLANDS {
            let island = self.here();
            self.put(branch(Code::Jmp_rel32_64), Some(Hole::Branch(target)));
            debug_assert_eq!(self.here() - island, ISLAND);
            for &(hole, _) in self.to_islands.iter().filter(|(_, to)| *to == target) {
                // A test makes all kinds, and follows their branches.
                self.bytes[hole as usize] = (island - hole - 1) as u8;
            }
        }
    }

    /// What the branch with its displacement at `hole` leads to: notes the exit, and goes back to `noted`.
    fn note(&mut self, hole: u32, noted: u32) {
        let start = self.here();
        self.bytes[hole as usize] = (start - hole - 1) as u8;
        self.note_last();
        self.put(Instruction::with_branch(Code::Jmp_rel8_64, noted.into()), None);
        debug_assert_eq!(self.here() - start, NOTE);
    }

    /// Whether all short branches have come out as forward ones.
    fn reaches_islands(&self) -> bool {
        self.to_islands.iter().all(|&(hole, _)| self.bytes[hole as usize] < 0x80)
    }

    /// rsp is `below` less than the CFA.
    fn save(&mut self, kind: Kind, below: i64) {
        if kind.keeps_rax() {
            self.put(store(Register::RSP, SAVED_RAX + below, Register::RAX), None);
        }
        if kind.second == Second::Kept {
            self.put(store(Register::RSP, SAVED_R11 + below, Register::R11), None);
        }
    }

    fn restore(&mut self, kind: Kind, below: i64) {
        if kind.second == Second::Kept {
            self.put(load(Register::R11, Register::RSP, SAVED_R11 + below), None);
        }
        if kind.keeps_rax() {
            self.put(load(Register::RAX, Register::RSP, SAVED_RAX + below), None);
        }
    }

    /// With the CFA in `cfa`: leaves the address of the frame's cell there, or goes to `outside`, by an island or
    /// directly.
    fn find_cell(&mut self, cfa: Register, other: Register, outside: Target, island: bool) {
        self.put(with_tls(Code::Mov_r64_rm64, other, CELLS), Some(Hole::Tls));
        // Two addresses in the same window, a multiple of its size, differ in the low bits only.
        let window = mem(other, WINDOW_WORD);
        self.put(Instruction::with2(Code::Xor_r64_rm64, cfa, window), None);
        let code = if cfa == Register::RAX { Code::Cmp_RAX_imm32 } else { Code::Cmp_rm64_imm32 };
        self.put(Instruction::with2(code, cfa, WINDOW as i32), None);
        if island {
            self.by_island(Code::Jae_rel8_64, outside);
        } else {
            self.put(branch(Code::Jae_rel32_64), Some(Hole::Branch(outside)));
        }
        let cell = MemoryOperand::with_base_index_scale(other, cfa, 2);
        self.put(Instruction::with2(Code::Lea_r64_m, cfa, cell), None);
    }

    fn fill_cell(&mut self, first: Register, second: Register) {
        self.put(Instruction::with2(Code::Mov_r64_rm64, first, Register::RSP), None);
        self.find_cell(first, second, Target::Outside, true);
        self.put(load(second, Register::RSP, -8), None);
        self.put(store(first, RETURN, second), None);
        // The upper half, which is 0, is the cell's link.
        let number = Instruction::with2(Code::Mov_rm64_imm32, mem(first, FUNCTION), 0x1234_5678);
        self.put(number, Some(Hole::Number));
        // After the cell: a signal handler that comes in between does not know of the frame yet.
        self.note_last();
    }

    /// rsp is the CFA: notes that the frame is entered or left.
    fn note_last(&mut self) {
        self.put(Instruction::with2(Code::Mov_rm64_r64, tls(LAST), Register::RSP), Some(Hole::Tls));
    }

    /// What a hashed thunk tries when its arc is not at home: the next slot. `len` is its own length.
    ///
    /// ```text
    ///   cmp  [rax+slot+16], r11
    ///   jne  behind
    ///   inc  qword [rax+slot+24]
    ///   jmp  resume
    /// behind:
    /// ```
    pub(crate) fn second_look(second: Second, len: usize) -> Template {
        const NEXT: i64 = size_of::<Slot>() as i64;
        let mut t = Template::default();
        let place = wide(second.first(), NEXT + KEY);
        let key = Instruction::with2(Code::Cmp_rm64_r64, place, second.register());
        t.put(key, Some(Hole::Slot));
        t.put(Instruction::with_branch(Code::Jne_rel8_64, len as u64), None);
        t.put(Instruction::with1(Code::Inc_rm64, wide(second.first(), NEXT + COUNT)), Some(Hole::Slot));
        t.put(branch(Code::Jmp_rel32_64), Some(Hole::Branch(Target::Body)));
        t
    }

    /// The thunk of a jump by which one hooked function tail-calls another. rsp is the CFA - 8; the slot
    /// there holds the caller's exit label and keeps it.
    ///
    /// ```text
    ///   mov  [rsp-8], rax
    ///   mov  [rsp-16], r11
    ///   lea  rax, [rsp+8]
    ///   mov  r11, fs:[cells]
    ///   xor  rax, [r11-8]
    ///   cmp  rax, 64 MiB
    ///   jae  outside the window
    ///   lea  rax, [r11+rax*2]
    ///   mov  r11, fs:[block]
    ///   cmp  dword [r11+slot], site  ; the slot's key, but for its upper half: in use?
    ///   jne  miss
    ///   inc  qword [r11+slot+8]
    ///   mov  dword [rax+8], number   ; the frame is the callee's from now on, and keeps its link
    ///   mov  r11, [rsp-16]
    ///   mov  rax, [rsp-8]
    ///   jmp  body
    /// ```
    ///
    /// To a leaf no frame is handed over, and the cell is left alone.
    pub(crate) fn tail(kind: Kind) -> Template {
        let mut t = Template::default();
        let (first, second) = (kind.second.first(), kind.second.register());
        t.save(kind, 8);
        if kind.both {
            t.put(Instruction::with2(Code::Lea_r64_m, first, mem(Register::RSP, 8)), None);
            t.find_cell(first, second, Target::Outside, false);
        }
        t.put(with_tls(Code::Mov_r64_rm64, second, BLOCK), Some(Hole::Tls));
        let key = Instruction::with2(Code::Cmp_rm32_imm32, wide(second, KEY), 0x1234_5678);
        t.put(key, Some(Hole::SlotAndSite));
        t.put(branch(Code::Jne_rel32_64), Some(Hole::Branch(Target::Miss)));
        t.put(Instruction::with1(Code::Inc_rm64, wide(second, COUNT)), Some(Hole::Slot));
        if kind.both {
            t.hand_over(first);
        }
        t.restore(kind, 8);
        t.put(branch(Code::Jmp_rel32_64), Some(Hole::Branch(Target::Body)));
        t
    }

    fn hand_over(&mut self, cell: Register) {
        let number = Instruction::with2(Code::Mov_rm32_imm32, mem(cell, FUNCTION), 0x1234_5678);
        self.put(number, Some(Hole::Number));
    }

    /// From the exit label on. rsp is the CFA, and [rsp-8] the return slot; any register may hold a result. Answers with
    /// where the displacement of the branch to [`Template::note`] is, and where that goes on.
    fn leave(&mut self, dead: u8) -> (u32, u32) {
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
        // Noted before the cell says that the frame is gone: until then it is one that was entered.
        let linked = Instruction::with2(Code::Cmp_rm32_imm8, mem(cfa, LINK), LEFT as i32);
        self.put(linked, None);
        self.put(Instruction::with_branch(Code::Ja_rel8_64, self.bytes.len() as u64), None);
        let noted = self.here();
        self.put(Instruction::with1(Code::Push_rm64, mem(cfa, RETURN)), None);
        self.pushed = self.here();
        self.put(store(cfa, RETURN, Register::RSP), None);
        if keep_r11 {
            self.put(load(Register::R11, Register::RSP, EXIT_SAVED_R11 + 8), None);
        }
        if keep_rax {
            self.put(load(Register::RAX, Register::RSP, EXIT_SAVED_RAX + 8), None);
        }
        self.put(Ok(Instruction::with(Code::Retnq)), None);
        (noted - 1, noted)
    }

    fn here(&self) -> u32 {
        self.bytes.len() as u32
    }

    fn put(&mut self, instruction: Made, hole: Option<Hole>) {
        // The instructions are constants of this file; a test encodes every template.
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
                Hole::Branch(_) => self.bytes.len() - start - 4,
            };
            self.holes.push(((start + at) as u32, hole));
        }
    }
}

type Made = Result<Instruction, iced_x86::IcedError>;

fn mem(base: Register, displacement: i64) -> MemoryOperand {
    if displacement == 0 {
        return MemoryOperand::with_base(base);
    }
    MemoryOperand::with_base_displ(base, displacement)
}

/// A memory operand whose displacement takes four bytes whatever its value.
fn wide(base: Register, displacement: i64) -> MemoryOperand {
    MemoryOperand::with_base_displ_size(base, displacement, 8)
}

/// `fs:[displacement]`, four bytes of displacement.
fn tls(displacement: i64) -> MemoryOperand {
    MemoryOperand::new(Register::None, Register::None, 1, displacement, 8, false, Register::FS)
}

fn load(register: Register, base: Register, displacement: i64) -> Made {
    Instruction::with2(Code::Mov_r64_rm64, register, mem(base, displacement))
}

fn store(base: Register, displacement: i64, register: Register) -> Made {
    Instruction::with2(Code::Mov_rm64_r64, mem(base, displacement), register)
}

fn with_tls(code: Code, register: Register, word: i64) -> Made {
    Instruction::with2(code, register, tls(word))
}

/// A near branch; its displacement is a hole.
fn branch(code: Code) -> Made {
    // A distant target, so that the encoder has no reason to take a short form.
    Instruction::with_branch(code, 0x1000_0000)
}

#[cfg(test)]
mod tests;
