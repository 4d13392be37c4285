//! Functions without room for a jump, which slide into the next function.
//!
//! A `ret` between other functions has one byte. If its address is taken and no cave is near, that byte
//! becomes `push rsp`, and control runs into the patch of the next function. A call never leaves a word on
//! the stack that equals its own address plus 8. The code after the next function's jump can therefore
//! find out which function was called. It removes the words from the stack again and jumps to the right
//! thunk:
//!
//! ```text
//! f1:  ret              push rsp                  sled:  lea rsp, [rsp+8]
//! f2:  xor eax, eax     push rsp                         cmp [rsp-8], rsp
//!      ret              nop                              je  pushed once
//! g:   push rbx         jmp sled                         lea rsp, [rsp-8]
//!      ...                                               jmp thunk of g
//!                                                 once:  the same for f2
//!                                                 twice: jmp thunk of f1
//! ```
//!
//! A function of three bytes that is not directly followed by a function with a jump can hop: `push rsp;
//! jmp short`. When the thunk begins, every register except the flags has its original value, and so has
//! every word from the original stack pointer up. Below that, the code reads only within 128 bytes of rsp.

use crate::x86::nops::NOPS;

/// Bytes of `push rsp; jmp rel8`.
pub(crate) const HOP: u64 = 3;

/// Bytes of the longest patch.
pub(crate) const LONGEST: u64 = 16;

/// `push rsp`.
const PUSH_RSP: u8 = 0x54;

/// The opcode of `jmp rel8`.
const JMP_SHORT: u8 = 0xeb;
/// The patch is filled up with nops of at most this many bytes.
const LONGEST_NOP: usize = 4;

/// The patch of a hook with `Tactic::Sled`, and where it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sled {
    /// Index in the image of the function that it leads to: another sled, or the function with the jump.
    pub next: usize,
    /// The number of words that have been pushed when control reaches the jump.
    pub depth: u32,
    /// Length of the patch, in bytes.
    pub len: u64,
    /// The target of its short jump, or `None` if control runs into the next function.
    pub hop: Option<u64>,
}

impl Sled {
    /// Returns the patch for the address `at`, or `None` if the short jump does not reach its target.
    pub(crate) fn bytes(&self, at: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![PUSH_RSP];
        if let Some(target) = self.hop {
            bytes.extend([JMP_SHORT, crate::x86::jump::short(at + HOP, target)?]);
        } else {
            while let rest @ 1.. = (self.len as usize).saturating_sub(bytes.len()) {
                bytes.extend(NOPS[rest.min(LONGEST_NOP) - 1]);
            }
        }
        Some(bytes)
    }
}
