//! Relocates a call that is the last of the relocated instructions. The call must push the original return
//! address, so that callers and unwinders see the original program, and the processor's return predictor must
//! see a call for the return.
//!
//! If r11 is free, the last three bytes of the call itself become `call *r11`, and the relocated instructions
//! lead there. That is as fast as the original. Otherwise, and whenever the text is unpatched, the call is
//! emulated; the return of the called function is then mispredicted.
//!
//! ```text
//! emulated:                                in its place:
//!   call next                                lea  r11, [target]   ; or mov r11, [operand]
//! next:                                      jmp  site            ; text as it was: to the next instruction
//!   lea  rsp, [rsp+8]                        call next
//!   push qword [rip+ra]                    next:
//!   jmp  target                              lea  rsp, [rsp+8]
//!                                            push qword [rip+ra]
//!                                            jmp  r11
//! ```
//!
//! The agent writes the jump's displacement together with the patches, so that the jump leads to the site
//! only while `call *r11` is there. It therefore does not matter at which of these instructions a thread is,
//! or has been interrupted, while the patches are written or removed.

use crate::x86::relocate::relocated::{Relocated, Unmovable};
use crate::x86::scratch::names_r11;
use iced_x86::{Code, Decoder, DecoderOptions, Encoder, Instruction, MemoryOperand, Register};

/// `call *r11`.
pub const CALL_R11: [u8; 3] = [0x41, 0xff, 0xd3];
/// `jmp rel32` to the next instruction.
const JUMP_NEXT: [u8; 5] = [0xe9, 0, 0, 0, 0];

/// How a relocated call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// It is emulated.
    Emulated,
    /// It is still made at its original address, where [`CALL_R11`] replaces its last bytes. This changes
    /// r11.
    InPlace,
}

/// Returns the offset in `code` of the bytes that can become [`CALL_R11`]. `code` consists of instructions
/// that end with a call, and a patch overwrites its first `patch` bytes. Returns `None` if there is no room,
/// or if an instruction uses r11.
pub fn site(code: &[u8], patch: u64) -> Option<u64> {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() || names_r11(&instruction) {
            return None;
        }
    }
    let site = instruction.next_ip().checked_sub(CALL_R11.len() as u64)?;
    let is_plain = matches!(instruction.code(), Code::Call_rel32_64 | Code::Call_rm64);
    // The bytes must lie inside the call, so that the row of the unwind table for the call applies to them.
    (is_plain && site >= instruction.ip() && site >= patch).then_some(site)
}

/// Appends the relocated form of the call, and returns the offset of the emulation in bytes.
///
/// # Errors
///
/// Returns an error if the call has a form that cannot be emulated, or if its operand is out of reach.
pub(super) fn append(
    call: &Instruction,
    form: Call,
    target: Option<u64>,
    from: u64,
    to: u64,
    out: &mut Relocated,
) -> Result<u32, Unmovable> {
    out.map.push(((call.ip() - from) as u32, out.bytes.len() as u32));
    let jump = match form {
        Call::Emulated => jump(call, target)?,
        Call::InPlace => {
            put(&load(call, target)?, to, out)?;
            out.call_jump = Some(out.bytes.len() as u32 + 1);
            out.bytes.extend_from_slice(&JUMP_NEXT);
            Instruction::with1(Code::Jmp_rm64, Register::R11)?
        }
    };
    let emulation = out.bytes.len();
    emulate(&jump, call.next_ip(), to, out)?;
    Ok(emulation as u32)
}

/// Appends the emulation of a call, which ends with `jump`.
fn emulate(jump: &Instruction, return_address: u64, to: u64, out: &mut Relocated) -> Result<(), Unmovable> {
    let here = to.wrapping_add(out.bytes.len() as u64);
    put(&Instruction::with_branch(Code::Call_rel32_64, here.wrapping_add(5))?, to, out)?;
    let above = MemoryOperand::with_base_displ(Register::RSP, 8);
    put(&Instruction::with2(Code::Lea_r64_m, Register::RSP, above)?, to, out)?;
    let push_at = out.bytes.len();
    // The word follows the jump, so its address depends on the jump's length.
    put(&push_from(here)?, to, out)?;
    put(jump, to, out)?;
    while !out.bytes.len().is_multiple_of(8) {
        out.bytes.push(0xcc);
    }
    let word = out.bytes.len();
    out.return_address = Some(word as u32);
    out.bytes.extend_from_slice(&return_address.to_le_bytes());
    let mut encoder = Encoder::new(64);
    encoder.encode(&push_from(to.wrapping_add(word as u64))?, to.wrapping_add(push_at as u64))?;
    let push = encoder.take_buffer();
    out.bytes[push_at..push_at + push.len()].copy_from_slice(&push);
    Ok(())
}

/// Appends an instruction.
fn put(instruction: &Instruction, to: u64, out: &mut Relocated) -> Result<(), Unmovable> {
    let mut encoder = Encoder::new(64);
    encoder.encode(instruction, to.wrapping_add(out.bytes.len() as u64))?;
    out.bytes.extend_from_slice(&encoder.take_buffer());
    Ok(())
}

/// Returns a jump to the target of the call, for use after the return address has been pushed.
fn jump(call: &Instruction, target: Option<u64>) -> Result<Instruction, Unmovable> {
    let mut jump = match call.code() {
        Code::Call_rel32_64 => {
            Instruction::with_branch(Code::Jmp_rel32_64, target.unwrap_or(call.near_branch_target()))?
        }
        // The push would change the target.
        Code::Call_rm64
            if matches!(call.op0_register(), Register::RSP) || call.memory_base() == Register::ESP =>
        {
            return Err(Unmovable("a call by the stack pointer"));
        }
        Code::Call_rm64 => {
            let mut jump = *call;
            jump.set_code(Code::Jmp_rm64);
            jump
        }
        _ => return Err(Unmovable("a call of an unusual form")),
    };
    if jump.memory_base() == Register::RSP {
        if (jump.memory_displacement64() as i64) < 0 {
            return Err(Unmovable("a call by what lies below the stack"));
        }
        // The operand is relative to the stack pointer as it was before the push.
        jump.set_memory_displacement64(jump.memory_displacement64().wrapping_add(8));
        jump.set_memory_displ_size(8);
    }
    Ok(jump)
}

/// Returns an instruction that loads the call's target into r11. Nothing has been pushed yet.
fn load(call: &Instruction, target: Option<u64>) -> Result<Instruction, Unmovable> {
    let r11 = Register::R11;
    Ok(match call.code() {
        Code::Call_rel32_64 => {
            let target = target.unwrap_or(call.near_branch_target());
            let operand = MemoryOperand::with_base_displ(Register::RIP, target as i64);
            Instruction::with2(Code::Lea_r64_m, r11, operand)?
        }
        Code::Call_rm64 if call.op0_register() != Register::None => {
            Instruction::with2(Code::Mov_r64_rm64, r11, call.op0_register())?
        }
        Code::Call_rm64 => {
            let operand = MemoryOperand::new(
                call.memory_base(),
                call.memory_index(),
                call.memory_index_scale(),
                call.memory_displacement64() as i64,
                call.memory_displ_size(),
                false,
                call.segment_prefix(),
            );
            Instruction::with2(Code::Mov_r64_rm64, r11, operand)?
        }
        _ => return Err(Unmovable("a call of an unusual form")),
    })
}

/// Returns a `push qword [address]` that is RIP-relative.
fn push_from(address: u64) -> Result<Instruction, Unmovable> {
    let operand = MemoryOperand::with_base_displ(Register::RIP, address as i64);
    Ok(Instruction::with1(Code::Push_rm64, operand)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::x86::relocate::instructions::relocate;
    use crate::x86::relocate::instructions::tests::{listing, moved_to};

    fn in_place(bytes: &[u8], to: u64) -> Relocated {
        relocate(bytes, 0x1000, to, 0x1000, Call::InPlace, &|_| None).unwrap()
    }

    #[test]
    fn a_call_keeps_its_return_address() {
        // sub rsp,8; call 0x2000
        let moved = moved_to(&[0x48, 0x83, 0xec, 8, 0xe8, 0xf7, 0x0f, 0, 0], 0x1000, 0x9000, 0x1000).unwrap();
        let word = moved.return_address.unwrap() as usize;
        assert_eq!(moved.bytes[word..], 0x1009_u64.to_le_bytes());
        let code = listing(&moved.bytes[..word], 0x9000);
        let push = format!("push qword ptr [{:#x}]", 0x9000 + word);
        assert_eq!(
            code[..5],
            ["sub rsp,8", "call 0x0000000000009009", "lea rsp,[rsp+8]", &push, "jmp 0x0000000000002000"]
        );
        assert_eq!(moved.offset_of(4), Some(4));
    }

    #[test]
    fn an_indirect_call_through_the_stack_is_adjusted() {
        // call [rsp+0x10]
        let moved = moved_to(&[0xff, 0x54, 0x24, 0x10], 0x1000, 0x9000, 0x1000).unwrap();
        let word = moved.return_address.unwrap() as usize;
        assert_eq!(listing(&moved.bytes[..word], 0x9000)[3], "jmp qword ptr [rsp+0x18]");
    }

    #[test]
    fn a_branch_to_the_call_leads_to_its_emulation() {
        // jrcxz 0x1003; push rax; call [rsi]
        let moved = moved_to(&[0xe3, 1, 0x50, 0xff, 0x16], 0x1000, 0x20_0000, 0x1000).unwrap();
        let code = listing(&moved.bytes, 0x20_0000);
        assert_eq!(code[..3], ["jrcxz 0x0000000000200003", "push rax", "call 0x0000000000200008"]);
        assert_eq!(moved.offset_of(3), Some(3));
    }

    #[test]
    fn calls_by_the_stack_pointer_stay() {
        for call in [&[0xff, 0xd4][..], &[0x67, 0xff, 0x54, 0x24, 8], &[0xff, 0x54, 0x24, 0xf8]] {
            assert!(moved_to(call, 0x1000, 0x9000, 0x1000).is_err());
        }
    }

    #[test]
    fn a_call_in_its_place_is_emulated_where_the_text_is_what_it_was() {
        // push rbx; call 0x2000
        let moved = in_place(&[0x53, 0xe8, 0xfa, 0x0f, 0, 0], 0x9000);
        let word = moved.return_address.unwrap() as usize;
        assert_eq!(moved.bytes[word..], 0x1006_u64.to_le_bytes());
        let code = listing(&moved.bytes[..word], 0x9000);
        let push = format!("push qword ptr [{:#x}]", 0x9000 + word);
        assert_eq!(
            code[..7],
            [
                "push rbx",
                "lea r11,[0x2000]",
                "jmp 0x000000000000900D",
                "call 0x0000000000009012",
                "lea rsp,[rsp+8]",
                &push,
                "jmp r11"
            ]
        );
        assert_eq!((moved.call_jump, moved.offset_of(1)), (Some(9), Some(1)));
    }

    #[test]
    fn a_call_in_its_place_can_be_redirected() {
        let bytes = [0x53, 0xe8, 0xfa, 0x0f, 0, 0];
        let moved = relocate(&bytes, 0x1000, 0x9000, 0x1000, Call::InPlace, &|_| Some(0x9100)).unwrap();
        assert_eq!(listing(&moved.bytes, 0x9000)[1], "lea r11,[0x9100]");
    }

    #[test]
    fn operands_of_calls_in_their_places_stay_as_they_are() {
        let loads = |bytes: &[u8]| listing(&in_place(bytes, 0x9000).bytes, 0x9000)[0].clone();
        assert_eq!(loads(&[0xff, 0x15, 0x10, 0, 0, 0]), "mov r11,[0x1016]");
        assert_eq!(loads(&[0xff, 0x54, 0x24, 0x10]), "mov r11,[rsp+0x10]");
        assert_eq!(loads(&[0xff, 0x54, 0x24, 0xf8]), "mov r11,[rsp-8]");
        assert_eq!(loads(&[0x67, 0xff, 0x54, 0x24, 8]), "mov r11,[esp+8]");
        assert_eq!(loads(&[0x64, 0x42, 0xff, 0x54, 0xa8, 8]), "mov r11,fs:[rax+r13*4+8]");
        assert_eq!(loads(&[0xff, 0x14, 0x25, 8, 0, 0, 0]), "mov r11,[8]");
        assert_eq!(loads(&[0xff, 0x14, 0x25, 8, 0, 0, 0x80]), "mov r11,[0xFFFFFFFF80000008]");
        assert_eq!(loads(&[0x40, 0xff, 0xd4]), "mov r11,rsp");
    }

    #[test]
    fn where_a_call_can_be_made_in_its_place() {
        let call = &[0xe8, 0, 1, 0, 0][..];
        assert_eq!(site(call, 2), Some(2));
        assert_eq!(site(call, 5), None);
        assert_eq!(site(&[&[0x48, 0x83, 0xec, 8], call].concat(), 5), Some(6)); // sub rsp,8
        assert_eq!(site(&[&[0x48, 0x89, 0xe5], call].concat(), 5), Some(5)); // mov rbp,rsp
        assert_eq!(site(&[&[0x66, 0x90], call].concat(), 5), None);
        assert_eq!(site(&[0xff, 0x14, 0xd0], 0), Some(0)); // call [rax+rdx*8]
        assert_eq!(site(&[0x55, 0xff, 0x10], 0), None); // push rbp; call [rax]
        assert_eq!(site(&[&[0x41, 0x53], call].concat(), 2), None); // push r11
        assert_eq!(site(&[&[0x45, 0x89, 0xc3], call].concat(), 2), None); // mov r11d,r8d
        assert_eq!(site(&[0x41, 0xff, 0x53, 8], 0), None); // call [r11+8]
        assert_eq!(site(&[0x42, 0xff, 0x54, 0x18, 8], 0), None); // call [rax+r11+8]
        assert_eq!(site(&[0xff, 0x5c, 0x24, 8], 0), None); // call far [rsp+8]
        assert_eq!(site(&[0x53, 0x90, 0x90, 0x90], 0), None);
    }
}
