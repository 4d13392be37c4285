//! Finds the instructions that load the second argument of a hook, the caller's address, from the stack.
//!
//! ```text
//! mov rsi, [rsp+8]      mov rax, [rbp+8]        mov rbx, [rsp+24]   ; in the prologue
//! call enter            mov rsi, rax            ..
//!                       lea rax, [f]            mov rsi, rbx
//!                       mov rdi, rax            call enter
//!                       call enter              ..
//!                                               mov rsi, rbx
//!                                               call exit
//! ```
//!
//! When the calls are removed, nothing reads what these instructions write: rsi is dead after a call, and so is
//! any other register that a call may change; a register that calls preserve contains nothing else from the
//! prologue on. The load is removed only if the code shows this.

use crate::removed::Removed;
use iced_x86::{Code, FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register};

/// A register that was loaded from the stack and is used only for arguments, as far as is known.
#[derive(Debug)]
struct Held {
    register: Register,
    load: Removed,
    /// Whether calls preserve the register, so that its value lives to the function's end.
    kept: bool,
    /// For a preserved register: whether an argument was made of it.
    used: bool,
    /// Whether the register has been overwritten since.
    over: bool,
}

/// Follows the arguments of hooks through a function.
#[derive(Default)]
pub(crate) struct Arguments {
    /// The instruction that loaded rsi, and the address of the load of which rsi is a copy.
    pending: Option<(Removed, Option<u64>)>,
    held: Vec<Held>,
    /// The loads of registers that calls change, for arguments only.
    done: Vec<Removed>,
    /// The loads of rsi before a branch.
    open: Vec<Removed>,
    /// Whether there has been a branch.
    behind_prologue: bool,
}

impl Arguments {
    /// Processes an instruction that is not a call of a hook.
    pub(crate) fn step(&mut self, i: &Instruction, this: Removed, factory: &mut InstructionInfoFactory) {
        let is_load = is_load(i);
        if self.pending.is_none() && self.held.is_empty() && !is_load {
            self.behind_prologue |= i.flow_control() != FlowControl::Next;
            return;
        }
        if is_copy_to_rsi(i)
            && let Some(held) = self.held.iter().find(|h| !h.over && h.register == i.op1_register())
        {
            let from = held.load.address;
            self.drop_pending();
            self.pending = Some((this, Some(from)));
            return;
        }
        let branches = i.flow_control() != FlowControl::Next;
        self.behind_prologue |= branches;
        let used = uses(i, Register::RSI, factory).any();
        if let Some((load, None)) = self.pending.filter(|_| branches && !used) {
            self.open.push(load);
        }
        if branches || used {
            self.drop_pending();
        }
        let source = self.pending.as_ref().and_then(|&(_, from)| from);
        self.held.retain_mut(|h| {
            let uses = uses(i, h.register, factory);
            if h.kept {
                return !uses.any() || i.code() == Code::Pop_r64;
            }
            if !h.over && (uses.reads || branches) {
                return false;
            }
            h.over |= uses.writes;
            !h.over || source == Some(h.load.address)
        });
        if !is_load {
            return;
        }
        let register = i.op0_register();
        let kept = is_kept(register);
        if register == Register::RSI {
            self.pending = Some((this, None));
        } else if !kept || !self.behind_prologue {
            self.held.push(Held { register, load: this, kept, used: false, over: false });
        }
    }

    /// Processes a call of a hook. Returns the instruction that made its argument.
    pub(crate) fn call(&mut self) -> Option<Removed> {
        let (argument, source) = self.pending.take().unzip();
        let source = source.flatten();
        for h in self.held.iter_mut().filter(|h| source == Some(h.load.address)) {
            h.used = true;
            if !h.kept {
                self.done.push(h.load);
            }
        }
        self.held.retain(|h| h.kept);
        argument
    }

    /// Control may leave for code that is not analysed here and that may read preserved registers.
    pub(crate) fn leave(&mut self) {
        self.behind_prologue = true;
        self.held.retain(|h| !h.kept);
    }

    /// Returns the loads that only an analysis of all paths can decide.
    pub(crate) fn open(&mut self) -> Vec<Removed> {
        std::mem::take(&mut self.open)
    }

    /// Returns, at the function's end, the loads that are not needed any more.
    pub(crate) fn loads(mut self) -> impl Iterator<Item = Removed> {
        self.drop_pending();
        self.done.into_iter().chain(self.held.into_iter().filter(|h| h.kept && h.used).map(|h| h.load))
    }

    /// rsi had another purpose, and so had the register from which it was copied.
    fn drop_pending(&mut self) {
        if let Some((_, Some(from))) = self.pending.take() {
            self.held.retain(|h| h.load.address != from);
        }
    }
}

/// Whether the instruction is `mov register, [rsp+n]` or `mov register, [rbp+n]`.
fn is_load(i: &Instruction) -> bool {
    i.code() == Code::Mov_r64_rm64
        && i.op1_kind() == OpKind::Memory
        && matches!(i.memory_base(), Register::RSP | Register::RBP)
        && i.memory_index() == Register::None
        && i.segment_prefix() == Register::None
}

/// Returns the register in `mov rsi, register`.
fn is_copy_to_rsi(i: &Instruction) -> bool {
    matches!(i.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64)
        && i.op0_register() == Register::RSI
        && i.op1_kind() == OpKind::Register
}

/// Whether functions preserve the register (System V ABI for x86-64, figure 3.4).
fn is_kept(register: Register) -> bool {
    use Register::{R12, R13, R14, R15, RBP, RBX, RSP};
    matches!(register, RBX | RBP | RSP | R12 | R13 | R14 | R15)
}

/// How an instruction uses a register.
#[derive(Default)]
pub(crate) struct Uses {
    pub(crate) reads: bool,
    /// Whether it writes all of the register, on every path.
    pub(crate) writes: bool,
}

impl Uses {
    fn any(&self) -> bool {
        self.reads || self.writes
    }
}

/// Returns how an instruction uses a register.
pub(crate) fn uses(i: &Instruction, register: Register, factory: &mut InstructionInfoFactory) -> Uses {
    let mut uses = Uses::default();
    for used in factory.info(i).used_registers().iter().filter(|u| u.register().full_register() == register) {
        match used.access() {
            // A 32-bit write clears the upper half.
            OpAccess::Write if used.register().size() >= 4 => uses.writes = true,
            _ => uses.reads = true,
        }
    }
    uses
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    const LOAD_RSI: &[u8] = &[0x48, 0x8b, 0x74, 0x24, 8]; // mov rsi, [rsp+8]
    const LOAD_RAX: &[u8] = &[0x48, 0x8b, 0x45, 8]; // mov rax, [rbp+8]
    const RSI_RAX: &[u8] = &[0x48, 0x89, 0xc6]; // mov rsi, rax
    const RDI_RAX: &[u8] = &[0x48, 0x89, 0xc7]; // mov rdi, rax
    const LEA_RAX: &[u8] = &[0x48, 0x8d, 0x05, 0, 0, 0, 0]; // lea rax, [rip]
    const PUSH_RBX: &[u8] = &[0x53];
    const LOAD_RBX: &[u8] = &[0x48, 0x8b, 0x5c, 0x24, 8]; // mov rbx, [rsp+8]
    const RSI_RBX: &[u8] = &[0x48, 0x89, 0xde]; // mov rsi, rbx
    const EAX_EBX: &[u8] = &[0x89, 0xd8]; // mov eax, ebx
    const POP_RBX: &[u8] = &[0x5b];
    const BRANCH: &[u8] = &[0x74, 0]; // je
    const CALL: &[u8] = &[0xff, 0xd0]; // call rax
    /// A call of a hook.
    const HOOK: &[u8] = &[0xe8, 0, 0, 0, 0];

    /// Returns the numbers of the instructions that are removed.
    fn taken(code: &[&[u8]]) -> Vec<usize> {
        let mut factory = InstructionInfoFactory::new();
        let mut arguments = Arguments::default();
        let mut taken = Vec::new();
        for (n, bytes) in code.iter().enumerate() {
            let i = Decoder::with_ip(64, bytes, 16 * n as u64, DecoderOptions::NONE).decode();
            if *bytes == HOOK {
                taken.extend(arguments.call());
            } else {
                let this = Removed { address: i.ip(), len: i.len() as u8, returns: false };
                arguments.step(&i, this, &mut factory);
            }
        }
        taken.extend(arguments.loads());
        let mut taken: Vec<usize> = taken.iter().map(|r| r.address as usize / 16).collect();
        taken.sort_unstable();
        taken
    }

    #[test]
    fn a_load_before_the_call() {
        assert_eq!(taken(&[PUSH_RBX, LOAD_RSI, EAX_EBX, HOOK]), [1]);
        assert_eq!(taken(&[LOAD_RSI, HOOK, LOAD_RSI, POP_RBX, HOOK]), [0, 2]);
    }

    #[test]
    fn a_load_that_something_else_may_use_stays() {
        assert_eq!(taken(&[LOAD_RSI, &[0x48, 0x89, 0xf0], HOOK]), [0; 0]); // mov rax, rsi
        assert_eq!(taken(&[LOAD_RSI, &[0x48, 0xa5], HOOK]), [0; 0]); // movsq
        assert_eq!(taken(&[LOAD_RSI, BRANCH, HOOK]), [0; 0]);
        assert_eq!(taken(&[LOAD_RSI, CALL, HOOK]), [0; 0]);
        assert_eq!(taken(&[HOOK, LOAD_RSI]), [0; 0]);
    }

    #[test]
    fn by_way_of_a_register_that_calls_change() {
        assert_eq!(taken(&[LOAD_RAX, RSI_RAX, LEA_RAX, RDI_RAX, HOOK]), [0, 1]);
        assert_eq!(taken(&[LOAD_RAX, RSI_RAX, HOOK]), [0, 1]);
        // rax is also read, so its load stays; the copy is not needed in any case.
        assert_eq!(taken(&[LOAD_RAX, RSI_RAX, RDI_RAX, HOOK]), [1]);
        assert_eq!(taken(&[LOAD_RAX, BRANCH, RSI_RAX, HOOK]), [0; 0]);
        assert_eq!(taken(&[LOAD_RAX, LEA_RAX, HOOK]), [0; 0]);
    }

    #[test]
    fn by_way_of_a_register_that_calls_keep() {
        let kept: &[&[u8]] = &[PUSH_RBX, LOAD_RBX, RSI_RBX, HOOK, CALL, BRANCH, RSI_RBX, POP_RBX, HOOK];
        assert_eq!(taken(kept), [1, 2, 6]);
        // The register is read by another instruction; or the load is not in the prologue.
        assert_eq!(taken(&[LOAD_RBX, RSI_RBX, HOOK, EAX_EBX, RSI_RBX, HOOK]), [1]);
        assert_eq!(taken(&[LOAD_RBX, RSI_RBX, CALL, RSI_RBX, HOOK]), [0; 0]);
        assert_eq!(taken(&[BRANCH, LOAD_RBX, RSI_RBX, HOOK]), [0; 0]);
        assert_eq!(taken(&[LOAD_RBX, EAX_EBX, RSI_RBX, HOOK]), [0; 0]);
    }
}
