//! Recognises the thunks by which compilers replace indirect branches, so that the processor does not predict them.
//!
//! ```text
//!   call 1f
//! 2:
//!   pause
//!   lfence
//!   jmp 2b
//! 1:
//!   mov [rsp], rax       ; an indirect call or jump; or lea rsp, [rsp+8] in place of a return
//!   ret
//! ```
//!
//! Such a thunk is no function: control comes to it by a call for an indirect call, and by a jump for an indirect jump, which may be a
//! `goto` in the midst of a function whose stack frame then lies where a return address would.

use gprofinject_image::Image;
use gprofinject_image::x86::ENDBR64;
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// Such a thunk has no more bytes than this, padding included.
const MOST: u64 = 64;

/// Returns whether a function is such a thunk.
pub(crate) fn is_retpoline(image: &Image, function: usize) -> bool {
    let f = &image.functions[function];
    let Some(code) = image.code_at(f.address, f.size.min(MOST)) else { return false };
    let start = if code.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
    if f.size > MOST || code.get(start) != Some(&CALL) {
        return false;
    }
    let at = |offset: usize| {
        let bytes = code.get(offset..).unwrap_or_default();
        Decoder::with_ip(64, bytes, f.address + offset as u64, DecoderOptions::NONE)
    };
    let call = at(start).decode();
    let Some(landing) = call.near_branch_target().checked_sub(f.address) else { return false };
    let lands_inside = call.code() == Code::Call_rel32_64 && landing > (start + call.len() - 1) as u64;
    let mut rest = at(landing as usize).into_iter().filter(|i| i.mnemonic() != Mnemonic::Nop);
    lands_inside
        && landing < f.size
        && rest.next().is_some_and(|i| replaces_return_address(&i))
        && rest.next().is_some_and(|i| i.code() == Code::Retnq)
}

const CALL: u8 = 0xe8;

/// Returns whether an instruction overwrites the word on top of the stack with a register, or removes it.
fn replaces_return_address(i: &Instruction) -> bool {
    let top = i.memory_base() == Register::RSP && i.memory_index() == Register::None;
    match i.code() {
        Code::Mov_rm64_r64 => i.op0_kind() == OpKind::Memory && top && i.memory_displacement64() == 0,
        Code::Lea_r64_m => i.op0_register() == Register::RSP && top && i.memory_displacement64() == 8,
        Code::Add_rm64_imm8 => i.op0_register() == Register::RSP && i.immediate8() == 8,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{ENDBR64, is_retpoline};
    use crate::testing::{TEXT, image};
    use gprofinject_image::ElfType;

    /// Returns what is said of a function with this code.
    fn of(code: &[u8]) -> bool {
        is_retpoline(&image(ElfType::Dyn, TEXT, code, &[code.len()]), 0)
    }

    /// call 1f; 2: pause; lfence; jmp 2b; 1:
    const TRAP: [u8; 12] = [0xe8, 7, 0, 0, 0, 0xf3, 0x90, 0x0f, 0xae, 0xe8, 0xeb, 0xf9];

    #[test]
    fn thunks_of_compilers() {
        let with = |end: &[u8]| [&TRAP[..], end].concat();
        assert!(of(&with(&[0x48, 0x89, 0x04, 0x24, 0xc3]))); // mov [rsp],rax; ret
        assert!(of(&with(&[0x4c, 0x89, 0x1c, 0x24, 0xc3]))); // mov [rsp],r11; ret
        assert!(of(&with(&[0x48, 0x8d, 0x64, 0x24, 8, 0xc3]))); // lea rsp,[rsp+8]; ret
        assert!(of(&with(&[0x48, 0x83, 0xc4, 8, 0xc3]))); // add rsp,8; ret
        assert!(of(&[&ENDBR64, &with(&[0x48, 0x89, 0x04, 0x24, 0xc3])[..]].concat()));
    }

    #[test]
    fn other_code() {
        let with = |end: &[u8]| [&TRAP[..], end].concat();
        assert!(!of(&with(&[0x58, 0xc3]))); // pop rax; ret: the address of the code itself
        assert!(!of(&with(&[0x48, 0x89, 0x44, 0x24, 8, 0xc3]))); // mov [rsp+8],rax; ret
        assert!(!of(&with(&[0x48, 0x89, 0x04, 0x24, 0x90, 0xff, 0xe0]))); // mov [rsp],rax; nop; jmp rax
        assert!(!of(&[0xe8, 0xfb, 0xff, 0xff, 0xff, 0x48, 0x89, 0x04, 0x24, 0xc3])); // call itself
        assert!(!of(&[0xe8, 0, 1, 0, 0, 0x48, 0x89, 0x04, 0x24, 0xc3])); // call of other code
        assert!(!of(&[0x89, 0xf8, 0xc3]));
    }
}
