//! The effect of an x86-64 instruction on the flow of control.

use iced_x86::{Code, FlowControl, Instruction, OpKind};

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

/// Whether the instruction pushes a return address.
pub fn is_call(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

/// Whether the instruction does nothing.
pub fn is_nop(i: &Instruction) -> bool {
    use Code::{Nop_rm16, Nop_rm32, Nop_rm64, Nopd, Nopq, Nopw};
    matches!(i.code(), Nopw | Nopd | Nopq | Nop_rm16 | Nop_rm32 | Nop_rm64)
}

/// Whether the instruction may branch.
pub fn has_branch(i: &Instruction) -> bool {
    matches!(i.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
}

/// Whether the code begins with `[endbr64] [bnd] jmp [rip + slot]`, as a stub of a library function does
/// (.plt.sec, .plt.got).
pub fn is_stub(code: &[u8]) -> bool {
    let code = code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap_or(code);
    code.strip_prefix(&[0xf2]).unwrap_or(code).starts_with(&[0xff, 0x25])
}
