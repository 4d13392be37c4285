//! The effect of an x86-64 instruction on the flow of control. The planner, the reports and the reader of
//! programs all use it.
//!
//! A decoded instruction enters; a fact about it leaves. This module does not know what follows for a whole
//! function.

use iced_x86::{Code, FlowControl, Instruction, OpKind};

/// `endbr64`, the only instruction that an indirect branch may reach if the processor checks that.
pub const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Whether control may continue after the instruction.
pub fn falls_through(instruction: &Instruction) -> bool {
    !matches!(
        instruction.flow_control(),
        FlowControl::Return
            | FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Exception
    )
}

/// Whether control continues after the instruction each time that it is executed and does not branch.
///
/// This holds for all instructions that fall through, except for two kinds: a call may not return, and `hlt`
/// ends a program. Control continues after a system call.
pub fn goes_on(instruction: &Instruction) -> bool {
    // iced treats a system call as a call.
    falls_through(instruction)
        && instruction.flow_control() != FlowControl::IndirectCall
        && !instruction.is_call_near()
        && !instruction.is_call_far()
        && instruction.code() != Code::Hlt
}

/// Whether the instruction is a call, of a function or of the system.
pub fn is_call(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

/// Whether the instruction always jumps.
pub fn is_jump(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::UnconditionalBranch | FlowControl::IndirectBranch)
}

/// Whether the instruction names the address to which it may branch, other than by a call.
pub fn is_direct_branch(instruction: &Instruction) -> bool {
    use FlowControl::{ConditionalBranch, UnconditionalBranch, XbeginXabortXend};
    matches!(instruction.flow_control(), ConditionalBranch | UnconditionalBranch | XbeginXabortXend)
}

/// Whether the instruction names an address to which it may branch, also by a call.
pub fn has_branch(i: &Instruction) -> bool {
    matches!(i.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
}

/// Whether the instruction does nothing.
pub fn is_nop(i: &Instruction) -> bool {
    use Code::{Nop_rm16, Nop_rm32, Nop_rm64, Nopd, Nopq, Nopw};
    matches!(i.code(), Nopw | Nopd | Nopq | Nop_rm16 | Nop_rm32 | Nop_rm64)
}

/// Whether assemblers and linkers align code with the instruction: it does nothing, or is a breakpoint.
pub fn is_padding_instruction(i: &Instruction) -> bool {
    is_nop(i) || i.code() == Code::Int3
}

/// Whether the code begins with `[endbr64] [bnd] jmp [rip + slot]`, as a stub of a library function does
/// (.plt.sec, .plt.got).
pub fn is_stub(code: &[u8]) -> bool {
    let code = code.strip_prefix(&ENDBR64).unwrap_or(code);
    code.strip_prefix(&[0xf2]).unwrap_or(code).starts_with(&[0xff, 0x25])
}

/// Whether the bytes are only what assemblers fill gaps with: int3, nop, long nops with any prefixes, and zeros.
pub fn is_fill(mut bytes: &[u8]) -> bool {
    if bytes.iter().all(|&byte| byte == 0) {
        return true;
    }
    while let Some((&first, rest)) = bytes.split_first() {
        bytes = match (first, rest) {
            (0xcc | 0x90 | 0x66 | 0x2e, rest) => rest,
            // nopw disp8/disp32(...): the operand's first byte contains the length.
            (0x0f, [0x1f, 0x00, rest @ ..]) => rest,
            (0x0f, [0x1f, 0x40, _, rest @ ..]) => rest,
            (0x0f, [0x1f, 0x44, _, _, rest @ ..]) => rest,
            (0x0f, [0x1f, 0x80, _, _, _, _, rest @ ..]) => rest,
            (0x0f, [0x1f, 0x84, _, _, _, _, _, rest @ ..]) => rest,
            _ => return false,
        };
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    /// The expected values are those of the processor's manual, not of iced's classification.
    #[test]
    fn what_instructions_do() {
        // Bytes: falls through, goes on, is a call, is a jump, is a direct branch, is padding.
        let expected: [(&[u8], [bool; 6]); 14] = [
            (&[0x01, 0xd0], [true, true, false, false, false, false]), // add eax, edx
            (&[0x90], [true, true, false, false, false, true]),        // nop
            (&[0x66, 0x0f, 0x1f, 0x44, 0, 0], [true, true, false, false, false, true]), // nopw
            (&[0xcc], [true, true, false, false, false, true]),        // int3
            (&[0xe8, 0, 0, 0, 0], [true, false, true, false, false, false]), // call
            (&[0xff, 0xd0], [true, false, true, false, false, false]), // call rax
            (&[0x0f, 0x05], [true, true, true, false, false, false]),  // syscall
            (&[0xeb, 0], [false, false, false, true, true, false]),    // jmp
            (&[0xff, 0xe0], [false, false, false, true, false, false]), // jmp rax
            (&[0x74, 0], [true, true, false, false, true, false]),     // je
            (&[0xe2, 0], [true, true, false, false, true, false]),     // loop
            (&[0xc3], [false, false, false, false, false, false]),     // ret
            (&[0x0f, 0x0b], [false, false, false, false, false, false]), // ud2
            (&[0xf4], [true, false, false, false, false, false]),      // hlt
        ];
        for (bytes, facts) in expected {
            let i = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
            let is = [falls_through, goes_on, is_call, is_jump, is_direct_branch, is_padding_instruction]
                .map(|is| is(&i));
            assert_eq!(is, facts, "{bytes:x?}");
        }
    }
}
