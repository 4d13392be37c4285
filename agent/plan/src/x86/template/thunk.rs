//! The thunks of functions.

use crate::x86::template::encode::{branch, header_word, load, mem, store, thread_word, wide};
use crate::x86::template::exit::BEHIND_EXIT;
use crate::x86::template::kind::{Kind, Measured, Role, Second};
use crate::x86::template::{
    BLOCK, CELLS, COUNT, FREE_BYTE, FUNCTION, Hole, KEY, LAST, LIBRARY_LAST, LINE, RETURN, STATE_BYTE,
    Target, Template,
};
use gprofinject_abi::plan::{ArenaHeader, CALLBACK_JUMP, END_NUMBER_BELOW, WINDOW, WINDOW_WORD};
use gprofinject_abi::region::Slot;
use iced_x86::{Code, Instruction, MemoryOperand, Register};
use std::mem::offset_of;

/// Where the thunk saves rax on entry, as an offset from the CFA. The caller has no live data below the
/// return slot, and signal handlers do not touch the 128 bytes below rsp.
const SAVED_RAX: i64 = -16;

/// Where it saves r11 on entry.
const SAVED_R11: i64 = -24;

impl Template {
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
    ///   cmp  byte [rax+15], FREE
    ///   jne  outside the window
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
    ///   ja   note             ; unhooked code has called it, or it is not a standard frame
    ///   push qword [rax]      ; the return address back into its slot
    ///   mov  byte [rax+15], FREE
    /// freed:
    ///   mov  r11, [rsp-8]
    ///   mov  rax, [rsp-16]
    ///   ret
    ///   jmp  miss             ; islands, where the branches above lead
    ///   jmp  outside the window
    ///   jmp  outside the window, on exit
    /// note:
    ///   cmp  byte [rax+15], INTERNED
    ///   jae  outside the window, on exit
    ///   mov  fs:[last], rsp
    ///   push qword [rax]
    ///   or   byte [rax+15], FREE
    ///   jmp  freed
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
    /// `FREE` and `INTERNED` are the highest bytes of these states of a cell. If the cell is not free on entry, there has been no
    /// frame yet, or a frame has vanished: a coroutine that shares the stack has been copied away. The slow path for stack
    /// pointers outside the window handles that as well.
    ///
    /// No result of a call depends on a word that the call before has written, so no call has to wait for the previous one.
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
    ///
    /// If the results of calls are kept, the call of the agent follows `mov dword [rsp-80], number`.
    pub(crate) fn thunk(kind: Kind, role: Role, measured: Measured) -> Template {
        let with = |near| Template::thunk_with(kind, role, measured, near);
        let reaches = |thunk: &Template| thunk.reaches_islands();
        Some(with(0)).filter(reaches).or_else(|| Some(with(1)).filter(reaches)).unwrap_or_else(|| with(2))
    }

    /// Makes a thunk. The first `near` branches on the entry of a thunk with an exit are near ones, and the others lead to islands.
    fn thunk_with(kind: Kind, role: Role, measured: Measured, near: u32) -> Template {
        let mut t = Template::empty(role);
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
            let to_inner = matches!(measured, Measured::Outer | Measured::Long).then(|| t.if_inner());
            if measured == Measured::Chosen && kind.ends {
                let number = Instruction::with2(
                    Code::Mov_rm32_imm32,
                    mem(Register::RSP, -END_NUMBER_BELOW),
                    0x1234_5678,
                );
                t.put(number, Some(Hole::Number));
            }
            if measured != Measured::None && (measured != Measured::Chosen || kind.ends) {
                let end = offset_of!(ArenaHeader, end) as u32;
                t.put(Instruction::with1(Code::Call_rm64, header_word()), Some(Hole::Header(end)));
            }
            if let Some(to_inner) = to_inner {
                t.lands(to_inner);
            }
            let left = t.leave(kind.dead_on_exit);
            t.islands();
            t.note(&left);
        }
        t
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

    /// Adds code that saves the registers. rsp is `below` bytes below the CFA.
    pub(super) fn save(&mut self, kind: Kind, below: i64) {
        if kind.keeps_rax() {
            self.put(store(Register::RSP, SAVED_RAX + below, Register::RAX), None);
        }
        if kind.second == Second::Kept {
            self.put(store(Register::RSP, SAVED_R11 + below, Register::R11), None);
        }
    }

    /// Adds code that restores the registers. rsp is `below` bytes below the CFA.
    pub(super) fn restore(&mut self, kind: Kind, below: i64) {
        if kind.second == Second::Kept {
            self.put(load(Register::R11, Register::RSP, SAVED_R11 + below), None);
        }
        if kind.keeps_rax() {
            self.put(load(Register::RAX, Register::RSP, SAVED_RAX + below), None);
        }
    }

    /// Adds code that replaces the CFA in `cfa` by the address of the frame's cell, or branches to `outside`
    /// if the CFA is outside the thread's window, by an island or directly.
    pub(super) fn find_cell(&mut self, cfa: Register, other: Register, outside: Target, island: bool) {
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
        self.put(Instruction::with2(Code::Cmp_rm8_imm8, mem(first, STATE_BYTE), FREE_BYTE), None);
        if island {
            self.by_island(Code::Jne_rel8_64, Target::Outside);
        } else {
            self.put(branch(Code::Jne_rel32_64), Some(Hole::Branch(Target::Outside)));
        }
        self.put(load(second, Register::RSP, -8), None);
        self.put(store(first, RETURN, second), None);
        // The upper half of the word is the cell's link, and becomes 0: the frame is a standard one.
        let number = Instruction::with2(Code::Mov_rm64_imm32, mem(first, FUNCTION), 0x1234_5678);
        self.put(number, Some(Hole::Number));
        // This comes after the cell is filled. To a signal handler that interrupts the code before this
        // instruction, the frame does not exist yet.
        self.note_last(Register::RSP);
    }

    /// Adds code that records the newest frame, with the CFA that a register contains.
    pub(super) fn note_last(&mut self, cfa: Register) {
        let last = if self.role.is_library() { LIBRARY_LAST } else { LAST };
        let word = thread_word(self.role.segment(), last);
        self.put(Instruction::with2(Code::Mov_rm64_r64, word, cfa), Some(Hole::Tls));
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
        // It uses no word of the thread, so the role does not matter.
        let mut t = Template::empty(Role::Program);
        let place = wide(second.first(), NEXT + KEY);
        let key = Instruction::with2(Code::Cmp_rm64_r64, place, second.register());
        t.put(key, Some(Hole::Slot));
        t.put(Instruction::with_branch(Code::Jne_rel8_64, len as u64), None);
        t.put(Instruction::with1(Code::Inc_rm64, wide(second.first(), NEXT + COUNT)), Some(Hole::Slot));
        t.put(branch(Code::Jmp_rel32_64), Some(Hole::Branch(Target::Body)));
        t
    }
}
