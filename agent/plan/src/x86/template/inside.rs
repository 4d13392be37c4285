//! The check with which thunks begin in a plan that counts only calls from outside of the module (`--outermost`).

use crate::x86::template::encode::{branch, header_word, load, mem, store};
use crate::x86::template::kind::{Role, Second};
use crate::x86::template::{Hole, Target, Template};
use gprofinject_abi::plan::ArenaHeader;
use iced_x86::{Code, Instruction, Register};
use std::mem::offset_of;

/// Where the check saves r11, as an offset from rsp: where the thunk does.
const SAVED: i64 = -16;
/// Bytes below rsp that belong to the function, if control may come from its own code.
const RED_ZONE: i64 = 128;

impl Template {
    /// Makes the check: control continues in the function's body if the return slot contains an address in the module's own text. Then
    /// nothing is counted and the frame gets no cell, so that the function runs as if it were not hooked. (Where a jump out of a function
    /// with an exit has led here, the slot contains that function's exit label, and the slow path knows more.)
    ///
    /// ```text
    ///   mov  [rsp-16], r11
    ///   mov  r11, [rsp]
    ///   sub  r11, [text_lo]
    ///   cmp  r11, [text_len]
    ///   mov  r11, [rsp-16]
    ///   jb   body             ; behind the call of the gate
    /// ```
    ///
    /// The check uses the register that the thunk uses, and saves it if the thunk does. If control may also be `within` the function or
    /// the one before, where the memory below rsp is in use, `lea rsp, [rsp-128]` comes first, and the opposite before the branch.
    pub(crate) fn inside(second: Second, within: bool) -> Template {
        let mut t = Template::empty(Role::Program);
        let (second, below) = if within { (Second::Kept, RED_ZONE) } else { (second, 0) };
        let register = second.register();
        t.move_sp(-below);
        if second == Second::Kept {
            t.put(store(Register::RSP, SAVED, register), None);
        }
        t.put(load(register, Register::RSP, below), None);
        let words = [offset_of!(ArenaHeader, text_lo), offset_of!(ArenaHeader, text_len)];
        for (code, word) in [Code::Sub_r64_rm64, Code::Cmp_r64_rm64].into_iter().zip(words) {
            t.put(Instruction::with2(code, register, header_word()), Some(Hole::Header(word as u32)));
        }
        if second == Second::Kept {
            t.put(load(register, Register::RSP, SAVED), None);
        }
        t.move_sp(below);
        t.put(branch(Code::Jb_rel32_64), Some(Hole::Branch(Target::Inner)));
        t
    }

    /// Adds `lea rsp, [rsp+by]`, which leaves the flags alone.
    fn move_sp(&mut self, by: i64) {
        if by != 0 {
            self.put(Instruction::with2(Code::Lea_r64_m, Register::RSP, mem(Register::RSP, by)), None);
        }
    }
}
