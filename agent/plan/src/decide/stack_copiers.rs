//! Functions that copy parts of the stack away, and others back: they switch between coroutines that share one stack, or make
//! continuations.
//!
//! Python's greenlet and Stackless Python switch so (`slp_switch`). The frames of several coroutines have the same addresses there,
//! and so the same cells; the bytes that are copied must contain the true return addresses. Therefore the bodies of these
//! functions begin with a jump through the agent, which puts the return addresses of all frames back. They are hooked for that
//! even if the user has not selected them, and with `--hooks entry` too: functions whose loops only the shadow stack can
//! distinguish from calls have exit hooks then as well, in this module or in another one.
//!
//! They are known by their code, because the copies are often inlined into functions of other names: `add reg, rsp` and, as the
//! next instruction, `add reg, rbp`, which move a whole frame (greenlet, `platform/switch_amd64_unix.h`); or they fill a buffer of
//! `__builtin_setjmp` ([`contexts`]).

mod contexts;

use crate::decide::hook::Hook;
use crate::decide::unwinder::ThroughAgent;
use gprofinject_abi::plan::ArenaHeader;
use gprofinject_image::Image;
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind, Register};
use std::mem::offset_of;

/// The word of the arena through which these functions are called.
pub(crate) const GATE: usize = offset_of!(ArenaHeader, stack_copy);

/// The length in bytes of the two instructions.
const LEN: usize = 6;

/// Returns whether bytes may contain code that copies parts of the stack. This is fast enough for whole files.
#[must_use]
pub fn may_copy_stack(bytes: &[u8]) -> bool {
    /// The processor compares all of a block at once.
    const BLOCK: usize = 256;
    let starts = bytes.len().saturating_sub(contexts::LEN - 1);
    (0..starts).step_by(BLOCK).any(|from| {
        let block = &bytes[from..(from + BLOCK + LEN - 1).min(bytes.len())];
        let looks_like_it = block.windows(LEN).fold(false, |any, bytes| any | has_both(bytes));
        if looks_like_it && block.windows(LEN).fold(false, |any, bytes| any | moves_frame(bytes)) {
            return true;
        }
        let block = &block[..block.len().min(BLOCK + contexts::LEN - 1)];
        let stores = block
            .windows(contexts::LEN)
            .fold(false, |any, bytes| any | contexts::stores_stack_pointer(bytes));
        stores
            && (from..).zip(block.windows(contexts::LEN)).any(|(at, instruction)| {
                contexts::stores_stack_pointer(instruction) && contexts::may_fill(bytes, at)
            })
    })
}

/// The opcode of `add r/m64, r64`.
const ADD: u8 = 0x01;

/// Returns whether these bytes have the opcodes of the two instructions, and operands that differ as those do. This takes half
/// the time of [`moves_frame`], and is rarely true of other bytes.
#[inline(always)]
fn has_both(bytes: &[u8]) -> bool {
    (bytes[1] == ADD) & (bytes[4] == ADD) & (bytes[5] == bytes[2] | 1)
}

/// Returns whether these bytes are `add rsp, reg; add rbp, reg`, as assemblers encode them: REX.W, 01 and the ModRM byte.
#[inline(always)]
fn moves_frame(bytes: &[u8]) -> bool {
    const REX: u8 = 0x48;
    const REX_R: u8 = 4;
    const REGISTER: u8 = 0b111_000;
    const TO_RSP: u8 = 0b11_000_100;
    has_both(bytes) & (bytes[0] & !REX_R == REX) & (bytes[0] == bytes[3]) & (bytes[2] & !REGISTER == TO_RSP)
}

/// Returns the functions that copy parts of the stack, by their indices in the image.
pub(crate) fn all(image: &Image) -> Vec<usize> {
    if !image.code.iter().any(|code| may_copy_stack(&code.bytes)) {
        return Vec::new();
    }
    let copies = |&i: &usize| {
        let f = &image.functions[i];
        let copies =
            |code: &[u8]| may_copy_stack(code) && (moves(code, f.address) || contexts::fill(code, f.address));
        image.code_at(f.address, f.size).is_some_and(copies)
    };
    let mut all: Vec<usize> = (0..image.functions.len()).filter(copies).map(|i| image.owner(i)).collect();
    all.dedup();
    all
}

/// Returns whether two instructions of a function move a frame.
fn moves(code: &[u8], address: u64) -> bool {
    let mut added = Register::None;
    Decoder::with_ip(64, code, address, DecoderOptions::NONE).iter().any(|i| {
        let is_add = i.code() == Code::Add_rm64_r64 && i.op0_kind() == OpKind::Register;
        let of = |i: &Instruction| if is_add { i.op1_register() } else { Register::None };
        let found = is_add && i.op0_register() == Register::RBP && i.op1_register() == added;
        added = if is_add && i.op0_register() == Register::RSP { of(&i) } else { Register::None };
        found && i.op1_register() != Register::RSP
    })
}

/// Returns the hooked functions that are called through the agent.
pub(crate) fn through_agent(copiers: &[usize], hooks: &[Hook]) -> impl Iterator<Item = ThroughAgent> {
    copiers.iter().filter_map(|function| {
        let number = hooks.binary_search_by_key(function, |hook| hook.function).ok()?;
        Some(ThroughAgent { number, helper: None, gate: GATE })
    })
}

/// Returns a warning for the user if one of these functions is not hooked.
pub(crate) fn caution(image: &Image, copiers: &[usize], hooks: &[Hook], entry_only: bool) -> Option<String> {
    let is_hooked = |function: usize| hooks.binary_search_by_key(&function, |hook| hook.function).is_ok();
    let unhooked = copiers.iter().find(|&&function| !is_hooked(function))?;
    Some(format!(
        "{} copies parts of the stack and cannot be hooked, which hooks on exits do not survive: if the program crashes, use \
         --hooks {}",
        image.functions[*unhooked].name,
        if entry_only { "none" } else { "entry" }
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TEXT, image};
    use gprofinject_image::ElfType;

    /// objdump's bytes of `add %rax,%rsp; add %rax,%rbp`.
    const MOVES: [u8; 6] = [0x48, 0x01, 0xc4, 0x48, 0x01, 0xc5];

    #[test]
    fn both_pointers_are_moved() {
        let of = |code: &[u8]| {
            let code = [code, &[0xc3]].concat();
            let found = all(&image(ElfType::Dyn, TEXT, &code, &[code.len()]));
            assert!(may_copy_stack(&code) || found.is_empty());
            found.len()
        };
        assert_eq!(of(&MOVES), 1);
        assert_eq!(of(&[0x4c, 0x01, 0xec, 0x4c, 0x01, 0xed]), 1); // r13
        assert_eq!(of(&[0x48, 0x01, 0xc4, 0x4c, 0x01, 0xc5]), 0); // rax, r8
        assert_eq!(of(&[0x48, 0x01, 0xc4, 0x48, 0x01, 0xcd]), 0); // rax, rcx
        assert_eq!(of(&[0x48, 0x01, 0xdc, 0x51]), 0); // add %rbx,%rsp; push %rcx
        // movabs $0xc50148c401480000,%rax contains the bytes.
        assert_eq!(of(&[&[0x48, 0xb8, 0, 0][..], &MOVES].concat()), 0);
    }

    #[test]
    fn code_is_found_wherever_a_block_ends() {
        for at in [0, 1, 4090, 4091, 4092, 4095, 4096, 4097, 8191] {
            let mut bytes = vec![0x90; 9000];
            bytes[at..at + LEN].copy_from_slice(&MOVES);
            assert!(may_copy_stack(&bytes), "{at}");
            assert!(!may_copy_stack(&bytes[..at + LEN - 1]), "{at}");
        }
        assert!(!may_copy_stack(&[]) && may_copy_stack(&MOVES));
    }
}
