//! Functions that take a pointer in rax.
//!
//! The ABI passes nothing in rax but the number of vector arguments of a variadic call, which is in al. The dynamic linker
//! has functions with a convention of their own, the ones to which TLS descriptors lead (`_dl_tlsdesc_return` and others):
//! rax holds the address of a descriptor on entry and an offset on return, and every other register is as it was. Code that
//! is compiled with `-mtls-dialect=gnu2` calls them from any module, and keeps values in r10 and r11 meanwhile:
//!
//! ```text
//!     lea  rax, [rip+descriptor]        _dl_tlsdesc_return:
//!     call [rax]                            mov  rax, [rax+8]
//!     add  rax, fs:[0]                      ret
//! ```
//!
//! What shows such a function is that it uses all of rax before anything is written there. Thunks and slow paths can
//! preserve every register, so that it needs no refusal. An instruction that uses rax by accident, such as
//! `or rax, -1`, only makes the thunk longer.

use crate::flow::registers::uses::Uses;
use gprofinject_image::{Function, Image};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};

/// Returns whether the function uses all of rax in the straight line of code with which it begins, before it writes rax.
pub(crate) fn takes_rax(image: &Image, function: &Function, factory: &mut InstructionInfoFactory) -> bool {
    let bytes = image.code_at(function.address, function.size).unwrap_or_default();
    for i in &mut Decoder::with_ip(64, bytes, function.address, DecoderOptions::NONE) {
        if i.is_invalid() || i.flow_control() != FlowControl::Next {
            return false;
        }
        // clang aligns the stack by `push rax`, and long nops have operands.
        if i.code() == Code::Push_r64 || i.mnemonic() == Mnemonic::Nop {
            continue;
        }
        let uses = Uses::of(&i, Register::RAX, factory);
        if uses.reads && reads_all(&i, factory) {
            return true;
        }
        if uses.overwrites {
            return false;
        }
    }
    false
}

/// Returns whether the instruction may call one of those functions. A program without TLS descriptors has no such calls.
pub(crate) fn may_call_by_descriptor(i: &Instruction) -> bool {
    i.code() == Code::Call_rm64
        && i.op0_kind() == OpKind::Memory
        && (i.memory_base(), i.memory_index()) == (Register::RAX, Register::None)
        && i.memory_displacement64() == 0
}

/// Returns whether the instruction reads all 64 bits of rax.
fn reads_all(i: &Instruction, factory: &mut InstructionInfoFactory) -> bool {
    let is_read = |access| {
        !matches!(access, OpAccess::None | OpAccess::NoMemAccess | OpAccess::Write | OpAccess::CondWrite)
    };
    let mut used = factory.info(i).used_registers().iter();
    used.any(|used| used.register() == Register::RAX && is_read(used.access()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::facts::Flow;
    use crate::testing::{TEXT, image};
    use crate::x86::scratch::{R10, R11};
    use gprofinject_image::ElfType;

    /// Returns the registers that the thunk of a function with this code preserves, of r10 and r11: on entry and on exit.
    fn preserved(code: &[u8], change: impl Fn(&mut Image)) -> (u8, u8) {
        let mut image = image(ElfType::Dyn, TEXT, code, &[code.len()]);
        change(&mut image);
        let registers = Flow::of(&image, true).functions[0].registers;
        let of = |dead: u8| (R10 | R11) & !dead;
        (of(registers.dead_on_entry()), of(registers.dead_on_exit()))
    }

    /// mov rsi, [rax+8]; call rdi; ret
    const TAKES: [u8; 7] = [0x48, 0x8b, 0x70, 8, 0xff, 0xd7, 0xc3];

    #[test]
    fn a_function_that_takes_a_pointer_in_rax_has_all_registers_preserved() {
        assert_eq!(preserved(&TAKES, |_| ()), (R10 | R11, R10 | R11));
        let stores = [&[0x50, 0x66, 0x90, 0x48, 0x89, 0x04, 0x24][..], &TAKES[4..]].concat(); // push; nop; mov [rsp],rax
        assert_eq!(preserved(&stores, |_| ()), (R10 | R11, R10 | R11));
    }

    #[test]
    fn other_functions_do_not() {
        let others: [&[u8]; 6] = [
            &[0x50],                         // push rax
            &[0x84, 0xc0],                   // test al, al
            &[0x0f, 0xb6, 0xc0, 0x89, 0x06], // movzx eax, al; mov [rsi], eax
            &[0x31, 0xc0, 0x48, 0x89, 0x06], // xor eax, eax; mov [rsi], rax
            &[0x48, 0x8b, 0x77, 8],          // mov rsi, [rdi+8]
            &[0x75, 4, 0x48, 0x8b, 0x70, 8], // jne; mov rsi, [rax+8]: al, for all one knows
        ];
        for code in others {
            assert_eq!(preserved(&[code, &TAKES[4..]].concat(), |_| ()), (0, 0), "{code:x?}");
        }
    }

    #[test]
    fn a_runtime_may_have_another_first_argument() {
        assert_eq!(preserved(&TAKES, |image| image.facts.runtime = Some("OCaml".into())), (0, 0));
    }

    #[test]
    fn a_call_by_a_tls_descriptor_changes_no_register() {
        // lea rax, [rip+0]; call [rax] or [rax+8]; ret. The second function keeps a value in r11: mov r11, rdi; call;
        // mov rax, r11; ret.
        for (call, has_descriptors, kept) in
            [(&[0xff, 0x10][..], true, R11), (&[0xff, 0x10], false, 0), (&[0xff, 0x50, 8], true, 0)]
        {
            let callee = [&[0x48, 0x8d, 5, 0, 0, 0, 0][..], call, &[0xc3]].concat();
            let distance = -(callee.len() as i32 + 8);
            let caller =
                [&[0x49, 0x89, 0xfb, 0xe8][..], &distance.to_le_bytes(), &[0x4c, 0x89, 0xd8, 0xc3]].concat();
            let code = [&callee[..], &caller].concat();
            let mut image = image(ElfType::Dyn, TEXT, &code, &[callee.len(), caller.len()]);
            image.facts.tls_descriptors = has_descriptors;
            let registers = Flow::of(&image, true).functions[0].registers;
            assert_eq!(!registers.dead_on_entry() & R11, kept, "{call:x?} {has_descriptors}");
            // The second function reads it after the call: for all one knows, as a result.
            assert_eq!(!registers.dead_on_exit() & R11, R11, "{call:x?} {has_descriptors}");
        }
    }
}
