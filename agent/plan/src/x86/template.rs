//! The code of thunks as templates: encoded once by iced, then copied for each function with its holes
//! filled.
//!
//! Making a thunk must take well under a microsecond. The planner therefore encodes nothing for a single
//! function, except relocated instructions that require it.

mod deep;
pub(crate) mod kind;
mod tail;

use crate::x86::scratch::{R10, R11};
use gprofinject_abi::plan::{
    ArenaHeader, CALLBACK_JUMP, Cell, ISLAND, LEFT, NOTE, ThreadWords, WINDOW, WINDOW_WORD,
};
use gprofinject_abi::region::Slot;
use iced_x86::{Code, Encoder, Instruction, MemoryOperand, Register};
use std::mem::offset_of;

pub(crate) use crate::x86::template::kind::{Kind, Measured, Owner, Second};

/// The value that fills a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hole {
    /// An i32 displacement: the `fs:` offset of a word, or the `gs:` offset in a standalone program. The agent
    /// adds the offset of its words from the base of that segment.
    Tls,
    /// An i32 displacement: the offset of the function's first home slot in the thread's counters, added to
    /// the value that the template has there.
    Slot,
    /// The same, followed by a u32 immediate: the lower half of the key of a tail call's slot.
    SlotAndSite,
    /// The i32 displacement of a branch, relative to its end.
    Branch(Target),
    /// A u32 immediate: the function's number.
    Number,
    /// A u32 immediate: the mask of the home slot's offset.
    Mask,
    /// The same as a u8 immediate.
    NarrowMask,
    /// A u32 immediate: the multiplier of the home slot's hash.
    Multiplier,
    /// A u8 immediate: how many bits the hash shifts its product.
    Shift,
    /// The i32 displacement, relative to the end of the instruction, of the word of the
    /// [`ArenaHeader`] at this offset.
    Header(u32),
}

/// Where a branch out of a template leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// To the slow path for an arc that is not at its home slot.
    Miss,
    /// To the slow path for a stack pointer that is outside the thread's window on entry.
    Outside,
    /// To the slow path for a stack pointer that is outside the thread's window on exit.
    Exit,
    /// To the function's body, or back into its thunk.
    Body,
    /// To the place in the called function's thunk where a call is counted and its cell is not filled yet.
    Resume,
    /// To the function's body, behind the code that tells the agent that a call begins.
    Inner,
}

/// Encoded bytes with holes, and the offsets of labels in them.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The holes, each with the offset of its bytes.
    pub holes: Vec<(u32, Hole)>,
    /// The offset at which the thunk continues after the slow path has counted its arc. rsp is the CFA, unless the
    /// thunk has no exit.
    pub resume: u32,
    /// The offset at which the thunk continues after its second look has counted its arc.
    pub again: u32,
    /// The offset of the exit label, whose address the `call` pushes to the return slot, or 0 in a thunk
    /// without an exit.
    pub exit: u32,
    /// The offset of the first instruction after the one that pops the return address from its slot.
    pub popped: u32,
    /// The offset of the first instruction after the one that pushes the return address back to its slot.
    pub pushed: u32,
    /// The offsets of the displacements of short branches to islands, and the targets of those islands.
    to_islands: Vec<(u32, Target)>,
    /// Whether only calls by unhooked code use the exit: see [`Kind::callbacks`].
    is_for_callbacks: bool,
    /// Whose thunk it is.
    owner: Owner,
}

/// Branches out of thunks with an exit are short and lead to *islands*, which are near jumps after the exit's
/// `ret`. This saves eight bytes on the path of each call.
const ISLANDS: [Target; 3] = [Target::Miss, Target::Outside, Target::Exit];

/// The size in bytes of the islands and of the code after them, which records the return of a frame with a
/// link.
const BEHIND_EXIT: usize = ISLANDS.len() * ISLAND as usize + NOTE as usize;

/// Bytes of a cache line. The path of each call uses as few cache lines as possible, because each one costs
/// up to a nanosecond.
pub(crate) const LINE: usize = 64;
const BLOCK: i64 = offset_of!(ThreadWords, block) as i64;
const CELLS: i64 = offset_of!(ThreadWords, cells) as i64;
const LAST: i64 = offset_of!(ThreadWords, last) as i64;
const LIBRARY_LAST: i64 = offset_of!(ThreadWords, library_last) as i64;
const RETURN: i64 = offset_of!(Cell, return_address) as i64;
const FUNCTION: i64 = offset_of!(Cell, function) as i64;
const LINK: i64 = offset_of!(Cell, link) as i64;
const KEY: i64 = offset_of!(Slot, key) as i64;
const COUNT: i64 = offset_of!(Slot, count) as i64;

/// Where the thunk saves rax on entry, as an offset from the CFA. The caller has no live data below the
/// return slot, and signal handlers do not touch the 128 bytes below rsp.
const SAVED_RAX: i64 = -16;
/// Where it saves r11 on entry.
const SAVED_R11: i64 = -24;
/// Where the exit code saves r11, as an offset from the CFA. The exit code's own return slot is at CFA - 8.
const EXIT_SAVED_R11: i64 = -16;
/// Where the exit code saves rax.
const EXIT_SAVED_RAX: i64 = -24;

impl Template {
    /// Returns a template without code.
    pub(crate) fn empty(owner: Owner) -> Template {
        Template {
            bytes: Vec::new(),
            holes: Vec::new(),
            resume: 0,
            again: 0,
            exit: 0,
            popped: 0,
            pushed: 0,
            to_islands: Vec::new(),
            is_for_callbacks: false,
            owner,
        }
    }

    /// Returns the offset at which the thunk begins, which is `next` or higher. The thunk begins at a cache
    /// line if its exit code then lies in one line; otherwise it is placed so that the exit code begins at a
    /// cache line. `before` is the number of bytes before the template.
    pub(crate) fn place(&self, next: usize, before: usize) -> usize {
        if self.is_for_callbacks || self.exit == 0 {
            return next.next_multiple_of(LINE);
        }
        let exit = before + self.exit as usize;
        let end = before + self.bytes.len() - BEHIND_EXIT;
        if exit / LINE == (end - 1) / LINE {
            return next.next_multiple_of(LINE);
        }
        (next + exit).next_multiple_of(LINE) - exit
    }

    /// Makes the thunk of a function.
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
    /// The thunk saves and restores rax and r11 only if their values may be needed. It uses r10 instead if
    /// that makes it unnecessary to save r11 or rax.
    ///
    /// With several home slots, `mov rax, fs:[block]` becomes
    /// `imul eax, r11d, multiplier; shr eax, shift; and eax, mask; add rax, fs:[block]`. If the known return
    /// addresses differ in the masked bits, `mov eax, r11d` replaces the first two instructions.
    ///
    /// No word of memory is both read and written on every call, so no call has to wait for the previous one.
    /// A signal handler may interrupt the thunk anywhere, because its frames have cells of their own.
    ///
    /// A function that needs a cell only if unhooked code calls it has both: its thunk begins as that of entry hooks only. The
    /// slow path finds out who calls, and continues either at `resume` or, with a filled cell, at `call body`:
    ///
    /// ```text
    /// again:
    ///   mov  r11, [rsp-16]
    ///   mov  rax, [rsp-8]
    ///   jmp  body
    /// resume:               ; rsp = CFA
    ///   lea  rsp, [rsp-8]
    ///   jmp  again
    ///   call body
    /// exit:
    /// ```
    ///
    /// In the longest thunks the first islands are too far away, and the branches to `miss` and `outside` are near ones.
    ///
    /// The thunk of a library's function stores into the word `library_last` in place of `last`, and that of a
    /// standalone program has `gs:` in place of `fs:`. All have the same length.
    ///
    /// If calls are `measured`, the exit begins with a call of the agent; if that is only for the outer ones, with this code:
    ///
    /// ```text
    ///   cmp  rsp, fs:[deep]
    ///   ja   outer
    ///   cmp  rsp, fs:[deep_from]
    ///   jae  inner
    /// outer:
    ///   call [end]
    /// inner:
    /// ```
    pub(crate) fn thunk(kind: Kind, owner: Owner, measured: Measured) -> Template {
        let with = |near| Template::thunk_with(kind, owner, measured, near);
        let reaches = |thunk: &Template| thunk.reaches_islands();
        Some(with(0)).filter(reaches).or_else(|| Some(with(1)).filter(reaches)).unwrap_or_else(|| with(2))
    }

    /// Makes a thunk. The first `near` branches on the entry of a thunk with an exit are near ones, and the others lead to islands.
    fn thunk_with(kind: Kind, owner: Owner, measured: Measured, near: u32) -> Template {
        let mut t = Template::empty(owner);
        let (first, second) = (kind.second.first(), kind.second.register());
        // Displacements are relative to rsp as it is at that point.
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
            t.put_with_word(Code::Add_r64_rm64, first, BLOCK);
        } else {
            t.put_with_word(Code::Mov_r64_rm64, first, BLOCK);
        }
        let key = Instruction::with2(Code::Cmp_rm64_r64, wide(first, KEY), second);
        t.put(key, Some(Hole::Slot));
        t.is_for_callbacks = kind.callbacks;
        if kind.has_exit() && near < 1 {
            t.by_island(Code::Jne_rel8_64, Target::Miss);
        } else {
            t.put(branch(Code::Jne_rel32_64), Some(Hole::Branch(Target::Miss)));
        }
        t.put(Instruction::with1(Code::Inc_rm64, wide(first, COUNT)), Some(Hole::Slot));
        (t.resume, t.again) = (t.here(), t.here());
        if kind.skips {
            t.skip(kind);
        }
        if kind.both {
            t.fill_cell(first, second, near < 2);
        }
        let below = if kind.both { 0 } else { at_entry };
        t.restore(kind, below);
        if kind.callbacks {
            t.put(branch(Code::Jmp_rel32_64), Some(Hole::Branch(Target::Body)));
            (t.resume, t.popped) = (t.here(), t.here());
            t.put(Instruction::with2(Code::Lea_r64_m, Register::RSP, mem(Register::RSP, -8)), None);
            let jump = t.here();
            t.put(Instruction::with_branch(Code::Jmp_rel8_64, t.again.into()), None);
            debug_assert_eq!(t.here() - jump, CALLBACK_JUMP);
        }
        if kind.has_exit() {
            t.put(branch(Code::Call_rel32_64), Some(Hole::Branch(Target::Body)));
            t.exit = t.here();
            let to_inner = (measured == Measured::Outer).then(|| t.if_inner());
            if measured != Measured::None {
                let end = offset_of!(ArenaHeader, end) as u32;
                t.put(Instruction::with1(Code::Call_rm64, header_word()), Some(Hole::Header(end)));
            }
            if let Some(to_inner) = to_inner {
                t.lands(to_inner);
            }
            let (to_note, noted) = t.leave(kind.dead_on_exit);
            t.islands();
            t.note(to_note, noted);
        }
        t
    }

    /// Adds a short branch to an island.
    fn by_island(&mut self, code: Code, target: Target) {
        // The displacement is the last byte. It is filled in when the island is added.
        let hole = self.short_branch(code);
        self.to_islands.push((hole, target));
    }

    /// Adds the islands.
    fn islands(&mut self) {
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

    /// Adds the code that records the exit and jumps back to `noted`. The displacement of the branch to it is
    /// at `hole`.
    fn note(&mut self, hole: u32, noted: u32) {
        let start = self.here();
        self.bytes[hole as usize] = (start - hole - 1) as u8;
        self.note_last();
        self.put(Instruction::with_branch(Code::Jmp_rel8_64, noted.into()), None);
        debug_assert_eq!(self.here() - start, NOTE);
    }

    /// Returns whether all branches to islands reach them.
    fn reaches_islands(&self) -> bool {
        self.to_islands.iter().all(|&(hole, _)| self.bytes[hole as usize] < 0x80)
    }

    /// Adds code that saves the registers. rsp is `below` bytes below the CFA.
    fn save(&mut self, kind: Kind, below: i64) {
        if kind.keeps_rax() {
            self.put(store(Register::RSP, SAVED_RAX + below, Register::RAX), None);
        }
        if kind.second == Second::Kept {
            self.put(store(Register::RSP, SAVED_R11 + below, Register::R11), None);
        }
    }

    /// Adds code that restores the registers. rsp is `below` bytes below the CFA.
    fn restore(&mut self, kind: Kind, below: i64) {
        if kind.second == Second::Kept {
            self.put(load(Register::R11, Register::RSP, SAVED_R11 + below), None);
        }
        if kind.keeps_rax() {
            self.put(load(Register::RAX, Register::RSP, SAVED_RAX + below), None);
        }
    }

    /// Adds code that replaces the CFA in `cfa` by the address of the frame's cell, or branches to `outside`
    /// if the CFA is outside the thread's window, by an island or directly.
    fn find_cell(&mut self, cfa: Register, other: Register, outside: Target, island: bool) {
        self.put_with_word(Code::Mov_r64_rm64, other, CELLS);
        // Windows are aligned to their size, so two addresses in the same one differ only in low bits.
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

    /// Adds code that fills the frame's cell. rsp is the CFA.
    fn fill_cell(&mut self, first: Register, second: Register, island: bool) {
        self.put(Instruction::with2(Code::Mov_r64_rm64, first, Register::RSP), None);
        self.find_cell(first, second, Target::Outside, island);
        self.put(load(second, Register::RSP, -8), None);
        self.put(store(first, RETURN, second), None);
        // The upper half of the word is the cell's link, and becomes 0.
        let number = Instruction::with2(Code::Mov_rm64_imm32, mem(first, FUNCTION), 0x1234_5678);
        self.put(number, Some(Hole::Number));
        // This comes after the cell is filled. To a signal handler that interrupts the code before this
        // instruction, the frame does not exist yet.
        self.note_last();
    }

    /// Adds code that records that the frame is entered or left. rsp is the CFA.
    fn note_last(&mut self) {
        let last = if self.owner.is_library() { LIBRARY_LAST } else { LAST };
        let word = thread_word(self.owner.segment(), last);
        self.put(Instruction::with2(Code::Mov_rm64_r64, word, Register::RSP), Some(Hole::Tls));
    }

    /// Makes the second look: the code with which a thunk with a hash tries the next slot if its arc is not
    /// in its home slot. `len` is the length of this code in bytes.
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
        // It uses no word of the thread, so the owner does not matter.
        let mut t = Template::empty(Owner::Program);
        let place = wide(second.first(), NEXT + KEY);
        let key = Instruction::with2(Code::Cmp_rm64_r64, place, second.register());
        t.put(key, Some(Hole::Slot));
        t.put(Instruction::with_branch(Code::Jne_rel8_64, len as u64), None);
        t.put(Instruction::with1(Code::Inc_rm64, wide(second.first(), NEXT + COUNT)), Some(Hole::Slot));
        t.put(branch(Code::Jmp_rel32_64), Some(Hole::Branch(Target::Body)));
        t
    }

    /// Adds a short branch, and returns the offset of its displacement.
    fn short_branch(&mut self, code: Code) -> u32 {
        self.put(Instruction::with_branch(code, self.bytes.len() as u64), None);
        self.here() - 1
    }

    /// Lets the short branch with this displacement lead to the next instruction.
    fn lands(&mut self, displacement: u32) {
        self.bytes[displacement as usize] = (self.here() - displacement - 1) as u8;
    }

    /// Adds the code from the exit label on. rsp is the CFA, [rsp-8] is the return slot, and any register
    /// except those in `dead` may hold a result. Returns the offset of the displacement of the branch to
    /// [`Template::note`], and the offset to which that code jumps back.
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
        // The exit is recorded before the cell says that the frame is gone. Until then, the frame counts as
        // entered.
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

    /// Returns the offset of the next instruction.
    fn here(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Adds an instruction on a register and a word of the thread.
    fn put_with_word(&mut self, code: Code, register: Register, word: i64) {
        let word = thread_word(self.owner.segment(), word);
        self.put(Instruction::with2(code, register, word), Some(Hole::Tls));
    }

    /// Adds an instruction, which may have a hole.
    fn put(&mut self, instruction: Made, hole: Option<Hole>) {
        // The instructions are constants of this file, and a test encodes all templates, so this cannot fail.
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
}

/// An instruction, or the error of the encoder.
type Made = Result<Instruction, iced_x86::IcedError>;

/// Returns a memory operand with the shortest displacement.
fn mem(base: Register, displacement: i64) -> MemoryOperand {
    if displacement == 0 {
        return MemoryOperand::with_base(base);
    }
    MemoryOperand::with_base_displ(base, displacement)
}

/// Returns a memory operand whose displacement always takes four bytes.
fn wide(base: Register, displacement: i64) -> MemoryOperand {
    MemoryOperand::with_base_displ_size(base, displacement, 8)
}

/// Returns the operand `segment:[displacement]`, whose displacement takes four bytes.
fn thread_word(segment: Register, displacement: i64) -> MemoryOperand {
    MemoryOperand::new(Register::None, Register::None, 1, displacement, 8, false, segment)
}

/// Returns a word of the [`ArenaHeader`] as an operand, whose displacement is a hole.
fn header_word() -> MemoryOperand {
    MemoryOperand::with_base_displ_size(Register::RIP, 0x1000_0000, 8)
}

/// Makes a load.
fn load(register: Register, base: Register, displacement: i64) -> Made {
    Instruction::with2(Code::Mov_r64_rm64, register, mem(base, displacement))
}

/// Makes a store.
fn store(base: Register, displacement: i64, register: Register) -> Made {
    Instruction::with2(Code::Mov_rm64_r64, mem(base, displacement), register)
}

/// Makes a near branch, whose displacement is a hole.
fn branch(code: Code) -> Made {
    // The target is far away, so that the encoder does not choose a short form.
    Instruction::with_branch(code, 0x1000_0000)
}

#[cfg(test)]
mod tests;
