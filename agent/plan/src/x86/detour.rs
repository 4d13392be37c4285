//! A jump over the first instructions of a library function, and a copy of them by which the function can
//! still be called.

use crate::x86::jump::{JUMP, near_jump};
use crate::x86::relocate::call::Call;
use crate::x86::relocate::instructions::relocate;
use iced_x86::{Decoder, DecoderOptions, FlowControl, OpKind};

/// A function whose calls are redirected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detour {
    /// The bytes that overwrite the function's start: a jump, padded to the end of the last instruction that
    /// it overwrites.
    pub replacement: Vec<u8>,
    /// The code that calls the original function: a copy of the overwritten instructions, and a jump to the
    /// instruction after them.
    pub original: Vec<u8>,
}

impl Detour {
    /// Redirects a function. `code` has the bytes of the whole function, which is at the runtime address
    /// `at`; `copy` is the address for [`Detour::original`], and `to` the address to which calls are
    /// redirected.
    ///
    /// Returns `None` if the function is too short, branches back into its first instructions, or begins with
    /// instructions that cannot be relocated, or if an address is out of reach of a near jump.
    pub fn new(code: &[u8], at: u64, copy: u64, to: u64) -> Option<Detour> {
        let mut decoder = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
        let mut len = 0;
        let mut targets = Vec::new();
        let mut open = true;
        while decoder.can_decode() {
            let i = decoder.decode();
            if i.is_invalid() {
                break;
            }
            if len < JUMP && open {
                len = i.next_ip() - at;
                open = matches!(i.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch);
            }
            if i.op0_kind() == OpKind::NearBranch64 {
                targets.push(i.near_branch_target());
            }
        }
        if len < JUMP || targets.iter().any(|&target| target > at && target < at + len) {
            return None;
        }
        let moved = relocate(code.get(..len as usize)?, at, copy, at, Call::Emulated, &|_| None).ok()?;
        if moved.return_address.is_some() {
            return None;
        }
        let mut replacement = near_jump(at, to)?.to_vec();
        // Control never reaches these bytes, so they become `int3`.
        replacement.resize(len as usize, 0xcc);
        Some(Detour { replacement, original: moved.bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x1000;

    #[test]
    fn the_copy_goes_on_behind_the_jump() {
        // push rbp; mov rbp,rsp; mov rax,rdi; ret
        let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf8, 0xc3];
        let detour = Detour::new(&code, AT, 0x9000, 0x5000).expect("long enough");
        assert_eq!(detour.replacement, [0xe9, 0xfb, 0x3f, 0, 0, 0xcc, 0xcc]);
        let mut expected = code[..7].to_vec();
        expected.extend(near_jump(0x9007, AT + 7).expect("it is near"));
        assert_eq!(detour.original, expected);
    }

    #[test]
    fn what_cannot_be_moved_is_left_alone() {
        // xor eax,eax; ret
        assert_eq!(Detour::new(&[0x31, 0xc0, 0xc3], AT, 0x9000, 0x5000), None);
        // dec edi; jne to itself + 2; ret: the jump leads to the second instruction.
        assert_eq!(Detour::new(&[0xff, 0xcf, 0x90, 0x90, 0x90, 0x75, 0xfb, 0xc3], AT, 0x9000, 0x5000), None);
        // The target is out of reach, or the copy.
        assert_eq!(Detour::new(&[0x90; 16], AT, 0x9000, 0x5_0000_0000), None);
        assert_eq!(Detour::new(&[0x90; 16], AT, 0x5_0000_0000, 0x9000), None);
    }
}
