//! The code with which thunks let calls pass that are deeper than calls are measured.

use crate::x86::template::encode::{branch, mem, thread_word};
use crate::x86::template::kind::Kind;
use crate::x86::template::{Hole, Target, Template};
use gprofinject_abi::plan::ThreadWords;
use iced_x86::{Code, Instruction, Register};
use std::mem::offset_of;

const DEEP: i64 = offset_of!(ThreadWords, deep) as i64;
const DEEP_FROM: i64 = offset_of!(ThreadWords, deep_from) as i64;

impl Template {
    /// Adds code with which a call that is deeper than calls are measured goes to the body, without a cell. rsp is the CFA.
    ///
    /// ```text
    ///   cmp  rsp, fs:[deep]
    ///   ja   fill
    ///   cmp  rsp, fs:[deep_from]
    ///   jb   fill
    ///   mov  r11, [rsp-24]
    ///   mov  rax, [rsp-16]
    ///   lea  rsp, [rsp-8]
    ///   jmp  body             ; behind the code that tells the agent
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

    /// Adds a comparison of rsp with a word of the thread.
    fn compare_sp(&mut self, word: i64) {
        let word = thread_word(self.owner.segment(), word);
        self.put(Instruction::with2(Code::Cmp_r64_rm64, Register::RSP, word), Some(Hole::Tls));
    }

    /// Adds a branch that is taken if the call is deeper than calls are measured, and returns the offset of its displacement.
    pub(super) fn if_inner(&mut self) -> u32 {
        self.compare_sp(DEEP);
        let to_outer = self.short_branch(Code::Ja_rel8_64);
        self.compare_sp(DEEP_FROM);
        let to_inner = self.short_branch(Code::Jae_rel8_64);
        self.lands(to_outer);
        to_inner
    }
}
