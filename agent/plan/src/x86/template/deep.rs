//! The code by which thunks skip calls beyond the maximum measured depth (`--trace-depth`).
//!
//! While the innermost open call is at that depth, the word `deep` is its CFA minus 8. A call whose thunk finds rsp between `deep_from`
//! and `deep` is made within that call, on the same stack, so it is too deep. Otherwise `deep` is 0.

use crate::x86::template::encode::{branch, mem, thread_word};
use crate::x86::template::kind::Kind;
use crate::x86::template::{Hole, Target, Template};
use gprofinject_abi::plan::ThreadWords;
use iced_x86::{Code, Instruction, Register};
use std::mem::offset_of;

const DEEP: i64 = offset_of!(ThreadWords, deep) as i64;
const DEEP_FROM: i64 = offset_of!(ThreadWords, deep_from) as i64;

impl Template {
    /// Adds code by which a call beyond the maximum depth continues in the body without a cell. rsp is the CFA. `fill` is the code that
    /// follows, which makes the cell.
    ///
    /// ```text
    ///   cmp  rsp, fs:[deep]
    ///   ja   fill
    ///   cmp  rsp, fs:[deep_from]
    ///   jb   fill
    ///   mov  r11, [rsp-24]
    ///   mov  rax, [rsp-16]
    ///   lea  rsp, [rsp-8]
    ///   jmp  body             ; after the call of the gate
    /// fill:
    /// ```
    pub(super) fn skip(&mut self, kind: Kind) {
        self.compare_sp(DEEP);
        let above = self.short_branch(Code::Ja_rel8_64);
        self.compare_sp(DEEP_FROM);
        let elsewhere = self.short_branch(Code::Jb_rel8_64);
        self.restore(kind, 0);
        self.put(Instruction::with2(Code::Lea_r64_m, Register::RSP, mem(Register::RSP, -8)), None);
        self.put(branch(Code::Jmp_rel32_64), Some(Hole::Branch(Target::Inner)));
        self.lands(above);
        self.lands(elsewhere);
    }

    /// Adds a comparison of rsp with one of the thread's words.
    fn compare_sp(&mut self, word: i64) {
        let word = thread_word(self.role.segment(), word);
        self.put(Instruction::with2(Code::Cmp_r64_rm64, Register::RSP, word), Some(Hole::Tls));
    }

    /// Adds a branch that is taken if the call is beyond the maximum depth, and returns the offset of the branch's displacement.
    pub(super) fn if_inner(&mut self) -> u32 {
        self.compare_sp(DEEP);
        let to_outer = self.short_branch(Code::Ja_rel8_64);
        self.compare_sp(DEEP_FROM);
        let to_inner = self.short_branch(Code::Jae_rel8_64);
        self.lands(to_outer);
        to_inner
    }
}
