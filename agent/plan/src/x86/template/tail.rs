//! The thunks of jumps by which one hooked function tail-calls another.

use crate::x86::template::encode::{branch, header_word, load, mem, wide};
use crate::x86::template::kind::{Kind, Role};
use crate::x86::template::{BLOCK, COUNT, FUNCTION, Hole, KEY, Target, Template};
use gprofinject_abi::plan::{ArenaHeader, Labels};
use gprofinject_abi::region::PAGE;
use iced_x86::{Code, Instruction, Register};
use std::mem::offset_of;

impl Template {
    /// Makes the thunk of a jump by which one hooked function tail-calls another. rsp is CFA - 8. The return
    /// slot there holds the caller's exit label and keeps it.
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
    /// A leaf gets no frame, so for it the cell is not changed.
    pub(crate) fn tail(kind: Kind, role: Role) -> Template {
        let mut t = Template::empty(role);
        let (first, second) = (kind.second.first(), kind.second.register());
        t.save(kind, 8);
        if kind.both {
            t.put(Instruction::with2(Code::Lea_r64_m, first, mem(Register::RSP, 8)), None);
            t.find_cell(first, second, Target::Outside, false);
        }
        t.put_with_word(Code::Mov_r64_rm64, second, BLOCK);
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

    /// Makes the thunk of a jump out of a function that needs no cell to one that has a cell. The return slot contains the
    /// return address of the function that jumps or, if that was itself entered by a jump, an exit label. In the first case the
    /// callee's thunk fills the cell; in the second one the callee takes over the frame, as in [`Template::tail`].
    ///
    /// ```text
    ///   mov  [rsp-8], rax
    ///   mov  [rsp-16], r11
    ///   mov  r11, fs:[block]
    ///   cmp  dword [r11+slot], site
    ///   jne  miss
    ///   mov  rax, [rsp]
    ///   mov  r11, [program_labels]
    ///   cmp  rax, [r11]
    ///   jb   library
    ///   cmp  rax, [r11+8]
    ///   jb   label
    /// library:
    ///   mov  r11, [library_labels]
    ///   cmp  rax, [r11]
    ///   jb   address
    ///   cmp  rax, [r11+8]
    ///   jae  address
    ///   sub  rax, [r11+16]
    ///   shr  rax, 12
    ///   mov  r11, [r11+24]
    ///   bt   [r11], rax      ; between the arenas of libraries there may be anything
    ///   jb   label
    /// address:
    ///   mov  r11, fs:[block]
    ///   inc  qword [r11+slot+8]
    ///   lea  rsp, [rsp+8]
    ///   jmp  resume          ; in the callee's thunk
    /// label:
    ///   lea  rax, [rsp+8]
    ///   mov  r11, fs:[cells]
    ///   xor  rax, [r11-8]
    ///   cmp  rax, 64 MiB
    ///   jae  outside the window
    ///   lea  rax, [r11+rax*2]
    ///   mov  r11, fs:[block]
    ///   inc  qword [r11+slot+8]
    ///   mov  dword [rax+8], number
    ///   mov  r11, [rsp-16]
    ///   mov  rax, [rsp-8]
    ///   jmp  body
    /// ```
    ///
    /// [`Template::popped`] is the offset of the jump to `resume`, where rsp is the CFA.
    pub(crate) fn filling_tail(kind: Kind, role: Role) -> Template {
        const START: i64 = offset_of!(Labels, start) as i64;
        const END: i64 = offset_of!(Labels, end) as i64;
        const BASE: i64 = offset_of!(Labels, base) as i64;
        const PAGES: i64 = offset_of!(Labels, pages) as i64;
        let mut t = Template::empty(role);
        let (first, second) = (kind.second.first(), kind.second.register());
        t.save(kind, 8);
        t.put_with_word(Code::Mov_r64_rm64, second, BLOCK);
        let key = Instruction::with2(Code::Cmp_rm32_imm32, wide(second, KEY), 0x1234_5678);
        t.put(key, Some(Hole::SlotAndSite));
        t.put(branch(Code::Jne_rel32_64), Some(Hole::Branch(Target::Miss)));
        t.put(load(first, Register::RSP, 0), None);
        let (mut to_label, mut to_address) = (Vec::new(), Vec::new());
        for labels in [offset_of!(ArenaHeader, program_labels), offset_of!(ArenaHeader, library_labels)] {
            let word = Instruction::with2(Code::Mov_r64_rm64, second, header_word());
            t.put(word, Some(Hole::Header(labels as u32)));
            t.put(Instruction::with2(Code::Cmp_r64_rm64, first, mem(second, START)), None);
            to_address.push(t.short_branch(Code::Jb_rel8_64));
            t.put(Instruction::with2(Code::Cmp_r64_rm64, first, mem(second, END)), None);
            if labels == offset_of!(ArenaHeader, library_labels) {
                to_address.push(t.short_branch(Code::Jae_rel8_64));
                t.put(Instruction::with2(Code::Sub_r64_rm64, first, mem(second, BASE)), None);
                t.put(Instruction::with2(Code::Shr_rm64_imm8, first, PAGE.trailing_zeros()), None);
                t.put(load(second, second, PAGES), None);
                t.put(Instruction::with2(Code::Bt_rm64_r64, mem(second, 0), first), None);
                to_label.push(t.short_branch(Code::Jb_rel8_64));
            } else {
                to_label.push(t.short_branch(Code::Jb_rel8_64));
                to_address.drain(..).for_each(|hole| t.lands(hole));
            }
        }
        to_address.into_iter().for_each(|hole| t.lands(hole));
        t.put_with_word(Code::Mov_r64_rm64, second, BLOCK);
        t.put(Instruction::with1(Code::Inc_rm64, wide(second, COUNT)), Some(Hole::Slot));
        t.put(Instruction::with2(Code::Lea_r64_m, Register::RSP, mem(Register::RSP, 8)), None);
        t.popped = t.here();
        t.put(branch(Code::Jmp_rel32_64), Some(Hole::Branch(Target::Resume)));
        to_label.into_iter().for_each(|hole| t.lands(hole));
        t.put(Instruction::with2(Code::Lea_r64_m, first, mem(Register::RSP, 8)), None);
        t.find_cell(first, second, Target::Outside, false);
        t.put_with_word(Code::Mov_r64_rm64, second, BLOCK);
        t.put(Instruction::with1(Code::Inc_rm64, wide(second, COUNT)), Some(Hole::Slot));
        t.hand_over(first);
        t.restore(kind, 8);
        t.put(branch(Code::Jmp_rel32_64), Some(Hole::Branch(Target::Body)));
        t
    }

    /// Adds code that gives the frame in `cell` to the callee.
    fn hand_over(&mut self, cell: Register) {
        let number = Instruction::with2(Code::Mov_rm32_imm32, mem(cell, FUNCTION), 0x1234_5678);
        self.put(number, Some(Hole::Number));
    }
}
