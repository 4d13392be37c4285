//! Tells a function that jumps through a pointer to itself, a tail call, from one whose `goto` may lead to its first instruction.
//!
//! Both compute the function's address and jump through a register. A state machine whose states are functions does the former:
//!
//! ```text
//!   next = n % 3 ? other : this_function;
//!   return next(n - 1);
//! ```
//!
//! What a `goto` leads to is in the midst of a function. So a thunk may use nothing there that the function uses: neither the red zone
//! nor a register. If the function uses nothing of this kind, it does no harm to count the jump as a call. It is no call all the same
//! if the register has the function's address in any case: a compiler would make a direct jump of that, and hand-written code a loop.

use crate::flow::registers::facts::Registers;
use crate::x86::scratch::R10;
use gprofinject_image::{Function, Image};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// Returns whether the address of the function, whose registers these are, may be that of a label in it.
pub(crate) fn may_be_label(image: &Image, f: &Function, registers: &Registers) -> bool {
    let Some(code) = image.code_at(f.address, f.size) else { return true };
    let instructions = || Decoder::with_ip(64, code, f.address, DecoderOptions::NONE).into_iter();
    // A `goto` to the instruction that makes the frame would make another one.
    let first = instructions().find(|i| !matches!(i.mnemonic(), Mnemonic::Endbr64 | Mnemonic::Nop));
    if first.is_some_and(|i| makes_frame(&i)) {
        return false;
    }
    registers.takes_r11
        || registers.names & R10 != 0
        || instructions().any(|i| may_use_red_zone(&i))
        || always_leads_to(f.address, instructions())
}

/// Returns whether an indirect jump leads to this address in any case, as far as the instructions before it show.
fn always_leads_to(address: u64, instructions: impl Iterator<Item = Instruction>) -> bool {
    let mut holder = Register::None;
    for i in instructions {
        let first =
            if i.op0_kind() == OpKind::Register { i.op0_register().full_register() } else { Register::None };
        match i.flow_control() {
            FlowControl::IndirectBranch if first != Register::None && first == holder => return true,
            FlowControl::Next if i.code() == Code::Lea_r64_m && i.is_ip_rel_memory_operand() => {
                let is_it = i.ip_rel_memory_address() == address;
                holder = if is_it {
                    first
                } else if first == holder {
                    Register::None
                } else {
                    holder
                };
            }
            FlowControl::Next
                if first == holder && !matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Test) =>
            {
                holder = Register::None;
            }
            _ => {}
        }
    }
    false
}

/// Returns whether an instruction makes room on the stack.
fn makes_frame(i: &Instruction) -> bool {
    let is_sub = matches!(i.code(), Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32);
    i.mnemonic() == Mnemonic::Push || is_sub && i.op0_register() == Register::RSP
}

/// Returns whether an instruction accesses memory below the stack pointer, or may help to do so.
fn may_use_red_zone(i: &Instruction) -> bool {
    let is_memory = (0..i.op_count()).any(|op| i.op_kind(op) == OpKind::Memory);
    let by_stack = is_memory && i.memory_base() == Register::RSP;
    let is_below = by_stack && ((i.memory_displacement64() as i64) < 0 || i.memory_index() != Register::None);
    let reads = |op: u32| i.op_kind(op) == OpKind::Register && i.op_register(op) == Register::RSP;
    let copies = i.code() == Code::Lea_r64_m && by_stack || (1..i.op_count()).any(reads);
    let pushes = i.mnemonic() == Mnemonic::Push && reads(0);
    is_below || copies || pushes || i.is_invalid()
}

#[cfg(test)]
mod tests {
    use super::may_be_label;
    use crate::flow::registers::facts::Registers;
    use crate::testing::{TEXT, image};
    use crate::x86::scratch::R10;
    use gprofinject_image::ImageKind;

    fn of(code: &[u8], registers: Registers) -> bool {
        let image = image(ImageKind::Pie, TEXT, code, &[code.len()]);
        may_be_label(&image, &image.functions[0], &registers)
    }

    #[test]
    fn only_code_that_a_thunk_could_disturb_may_have_such_a_label() {
        let none = Registers::default();
        let lea = [0x48, 0x8d, 0x05, 0xf9, 0xff, 0xff, 0xff]; // lea rax,[rip-7]
        // ...; cmove rax,rdx; jmp rax
        let with = |before: &[u8], after: &[u8]| {
            [before, &lea, after, &[0x48, 0x0f, 0x44, 0xc2, 0xff, 0xe0]].concat()
        };
        assert!(!of(&with(&[], &[]), none));
        assert!(!of(&with(&[], &[0x89, 0x7c, 0x24, 8]), none)); // mov [rsp+8],edi: an argument on the stack
        assert!(of(&with(&[], &[0x89, 0x7c, 0x24, 0xf8]), none)); // mov [rsp-8],edi
        assert!(of(&with(&[], &[0x48, 0x8d, 0x4c, 0x24, 0xf0]), none)); // lea rcx,[rsp-16]
        assert!(of(&with(&[], &[0x48, 0x8d, 0x4c, 0x24, 8]), none)); // lea rcx,[rsp+8]
        assert!(of(&with(&[], &[0x48, 0x89, 0xe1]), none)); // mov rcx,rsp
        assert!(of(&with(&[], &[0x48, 0x01, 0xe1]), none)); // add rcx,rsp
        assert!(of(&with(&[], &[0x54, 0x59]), none)); // push rsp; pop rcx
        // push rbx, also behind endbr64, or sub rsp,8: what comes before the frame is no label.
        assert!(!of(&with(&[0x53], &[0x89, 0x7c, 0x24, 0xf8, 0x5b]), none));
        assert!(!of(&with(&[0xf3, 0x0f, 0x1e, 0xfa, 0x53], &[0x89, 0x7c, 0x24, 0xf8, 0x5b]), none));
        assert!(!of(&with(&[0x48, 0x83, 0xec, 8], &[0x89, 0x7c, 0x24, 0xf8]), none));
        // lea rax,[rip-7]; dec ecx; jmp rax: a loop
        assert!(of(&[&lea[..], &[0xff, 0xc9, 0xff, 0xe0]].concat(), none));
        assert!(of(&with(&[], &[]), Registers { takes_r11: true, ..none }));
        assert!(of(&with(&[], &[]), Registers { names: R10, ..none }));
    }
}
