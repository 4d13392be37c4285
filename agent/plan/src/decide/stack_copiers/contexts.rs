//! Functions that fill a buffer of `__builtin_setjmp`: the frame pointer, the address of a label, and the stack pointer, in
//! consecutive words. With `-fcf-protection`, gcc stores the pointer to the shadow stack before the last one.
//!
//! A function that keeps the buffer elsewhere than in its frame lets others return to its frame when it has itself returned. That works
//! only if they copy the stack as well (Ruby's `callcc`).

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind, Register};

/// The length in bytes of the shortest store of the stack pointer.
pub(super) const LEN: usize = 3;

/// The stores to a buffer are at most this many bytes apart.
const NEAR: usize = 64;

/// The distances of the words of the stack pointer and of the label from that of the frame pointer.
const STACK_POINTER: [u64; 2] = [16, 24];
const LABEL: u64 = 8;

/// Returns whether these bytes are the beginning of `mov [...], rsp`, where the memory is not addressed by rsp or rbp.
#[inline(always)]
pub(super) fn stores_stack_pointer(bytes: &[u8]) -> bool {
    stores(bytes, RSP)
}

/// The numbers of registers in the middle field of a ModRM byte.
const RSP: u8 = 4;
const RBP: u8 = 5;

/// The same for the register of this number.
#[inline(always)]
fn stores(bytes: &[u8], register: u8) -> bool {
    const REX: u8 = 0x48;
    const REX_B: u8 = 1;
    const MOV: u8 = 0x89;
    const REGISTER: u8 = 0b111_000;
    const TO_REGISTER: u8 = 0b11_000_000;
    let (is_high, place) = (bytes[0] & REX_B != 0, bytes[2] & !REGISTER);
    // rsp as a base is a SIB byte, and so is r12; rbp without a displacement is rip.
    let is_frame = !is_high & (place & 0b111 == RSP) | !is_high & (place & 0b111 == RBP) & (place != RBP);
    (bytes[0] & !REX_B == REX)
        & (bytes[1] == MOV)
        & (bytes[2] & REGISTER == register << 3)
        & (place < TO_REGISTER)
        & !is_frame
}

/// Returns whether bytes, in which there is a store of the stack pointer at `at`, may contain code that fills a buffer.
pub(super) fn may_fill(bytes: &[u8], at: usize) -> bool {
    let near = &bytes[at.saturating_sub(NEAR)..(at + NEAR).min(bytes.len())];
    near.windows(LEN).any(|bytes| stores(bytes, RBP))
}

/// Returns whether a function fills a buffer that is elsewhere than in its frame.
pub(super) fn fill(code: &[u8], address: u64) -> bool {
    let (mut frame_pointers, mut stack_pointers, mut others) = (Vec::new(), Vec::new(), Vec::new());
    let mut has_label = false;
    let end = address + code.len() as u64;
    for i in &mut Decoder::with_ip(64, code, address, DecoderOptions::NONE) {
        let to = || i.memory_displacement64();
        match i.code() {
            Code::Lea_r64_m if i.is_ip_rel_memory_operand() => {
                has_label |= (address..end).contains(&i.ip_rel_memory_address());
            }
            Code::Mov_rm64_imm32 if is_elsewhere(&i) => {
                has_label |= (address..end).contains(&i.immediate(1));
                others.push(to());
            }
            Code::Mov_rm64_r64 if is_elsewhere(&i) => match i.op1_register() {
                Register::RBP => frame_pointers.push(to()),
                Register::RSP => stack_pointers.push(to()),
                _ => others.push(to()),
            },
            _ => {}
        }
    }
    let is_buffer = |&at: &u64| {
        STACK_POINTER.iter().any(|&distance| stack_pointers.contains(&at.wrapping_add(distance)))
            && others.contains(&at.wrapping_add(LABEL))
    };
    has_label && frame_pointers.iter().any(is_buffer)
}

/// Returns whether an instruction writes to memory that is not addressed by rsp or rbp.
fn is_elsewhere(i: &Instruction) -> bool {
    let of_frame = |register| matches!(register, Register::RSP | Register::RBP);
    i.op0_kind() == OpKind::Memory && !of_frame(i.memory_base()) && i.memory_index() == Register::None
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x1000;

    /// Returns whether code is found, by both ways of looking at it.
    fn found(code: &[u8]) -> bool {
        let may = (0..code.len() - LEN + 1).any(|at| stores_stack_pointer(&code[at..]) && may_fill(code, at));
        assert!(may || !fill(code, AT), "{code:x?}");
        fill(code, AT)
    }

    // The bytes are gcc's, for `if (__builtin_setjmp(buffer)) ...`.
    #[test]
    fn a_buffer_elsewhere_is_found() {
        // lea -16(%rip), %rax; mov %rbp, (%rcx); mov %rsp, 16(%rcx); mov %rax, 8(%rcx)
        let pie = [
            [0x48, 0x8d, 0x05, 0xf0, 0xff, 0xff, 0xff].as_slice(),
            &[0x48, 0x89, 0x29, 0x48, 0x89, 0x61, 0x10, 0x48, 0x89, 0x41, 0x08],
        ];
        assert!(found(&[&[0x90; 16], pie.concat().as_slice()].concat()));
        // The label is that of another function.
        assert!(!found(&pie.concat()));
        // mov %rbp, (%rcx); movq $0x1000, 8(%rcx); mov %rsp, 16(%rcx)
        let fixed = [
            [0x48, 0x89, 0x29].as_slice(),
            &[0x48, 0xc7, 0x41, 0x08, 0, 0x10, 0, 0],
            &[0x48, 0x89, 0x61, 0x10],
        ];
        assert!(found(&fixed.concat()));
        // The same with -fcf-protection: ...; mov %rsp, 24(%rcx)
        let protected = [
            [0x48, 0x8d, 0x05, 0xf9, 0xff, 0xff, 0xff].as_slice(),
            &[0x48, 0x89, 0x41, 0x08, 0x48, 0x89, 0x29, 0x48, 0x89, 0x61, 0x18],
        ];
        assert!(found(&protected.concat()));
        // A static buffer: lea -7(%rip), %rax; mov %rbp, 0x100(%rip); mov %rax, 0x101(%rip); mov %rsp, 0x102(%rip)
        let fixed = [
            [0x48, 0x8d, 0x05, 0xf9, 0xff, 0xff, 0xff].as_slice(),
            &[0x48, 0x89, 0x2d, 0, 1, 0, 0, 0x48, 0x89, 0x05, 1, 1, 0, 0, 0x48, 0x89, 0x25, 2, 1, 0, 0],
        ];
        assert!(found(&fixed.concat()));
    }

    #[test]
    fn other_stores_are_none() {
        // lea -7(%rip), %rax; mov %rbp, 32(%rsp); mov %rax, 40(%rsp); mov %rsp, 48(%rsp): a buffer in the frame.
        let own = [
            [0x48, 0x8d, 0x05, 0xf9, 0xff, 0xff, 0xff].as_slice(),
            &[0x48, 0x89, 0x6c, 0x24, 0x20, 0x48, 0x89, 0x44, 0x24, 0x28, 0x48, 0x89, 0x64, 0x24, 0x30],
        ];
        assert!(!found(&own.concat()));
        // lea -7(%rip), %rax; mov %rsp, (%rdi); mov %rbp, 8(%rdi); mov %rax, 16(%rdi): a switch of coroutines.
        let switch = [
            [0x48, 0x8d, 0x05, 0xf9, 0xff, 0xff, 0xff].as_slice(),
            &[0x48, 0x89, 0x27, 0x48, 0x89, 0x6f, 0x08, 0x48, 0x89, 0x47, 0x10],
        ];
        assert!(!found(&switch.concat()));
        // mov %rsp, -16(%rbp) and mov %rsp, %rax are no stores elsewhere; mov %rsp, 16(%r12) and mov %rsp, 16(%r13) are.
        assert!(
            !stores_stack_pointer(&[0x48, 0x89, 0x65, 0xf0]) && !stores_stack_pointer(&[0x48, 0x89, 0xe0])
        );
        assert!(
            stores_stack_pointer(&[0x49, 0x89, 0x64, 0x24, 0x10])
                && stores_stack_pointer(&[0x49, 0x89, 0x65, 0x10])
        );
    }
}
