//! Functions of a Go program that are entered in other ways than by calls, or that a hook would break.
//!
//! Go's compiler uses no calling convention in which this could matter, but its runtime contains assembly. Those functions
//! are recognised by their code:
//!
//! ```text
//! runtime.goexit                           runtime.sigreturn               runtime.asyncPreempt
//!   90              nop                      mov  rax, 15                    push rbp
//!   e8 ..           call runtime.goexit1     syscall  ; rt_sigreturn         mov  rbp, rsp
//!   90              nop                                                      pushfq
//! ```
//!
//! The first function of each goroutine returns to the second byte of `goexit`, an address that the runtime computes. A
//! signal handler returns to `sigreturn`, with the kernel's frame on the stack. And `asyncPreempt` is put between any two
//! instructions of a goroutine by a signal handler, so it saves the flags, which thunks change. C programs save the flags to
//! learn what the processor can do; whatever these are, they are right. Therefore this rule is one for Go alone.
//!
//! A preempted goroutine waits in `asyncPreempt`, which then returns to the interrupted instruction. If that is a relocated
//! one, Go must find the address of the original, because its tables describe only that; but the goroutine has to continue in
//! the copy, because the original is overwritten. So `asyncPreempt` is changed in its middle ([`resumption`]).

use crate::decide::hook::Hook;
use crate::decide::system_calls::{Purpose, Redirected};
use crate::decide::unwinder::ThroughAgent;
use crate::decide::verdict::{Failed, Reason};
use crate::x86::jump::JUMP;
use gprofinject_abi::plan::ArenaHeader;
use gprofinject_image::{Function, Image};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};
use std::mem::offset_of;
use std::ops::Range;

/// The functions that the kernel calls for each signal. They look up the interrupted function by the program counter, to
/// make a panic of a fault or to take a sample.
const HANDLERS: [&str; 2] = ["runtime.sigtramp", "runtime.cgoSigtramp"];
/// What the linker adds to the names of functions in assembly.
const ASSEMBLY: &str = ".abi0";

/// Returns whether a function must be hooked although the user has not selected it, because the agent has to replace the
/// addresses of relocated instructions before the function sees them.
pub(crate) fn is_needed(image: &Image, function: usize) -> bool {
    let is_handler = |name: &str| HANDLERS.contains(&name.strip_suffix(ASSEMBLY).unwrap_or(name));
    image.facts.go && image.functions[function].names().any(is_handler)
}

/// Returns the hooked functions that are called through the agent.
pub(crate) fn through_agent(image: &Image, hooks: &[Hook]) -> Vec<ThroughAgent> {
    if !image.facts.go {
        return Vec::new();
    }
    let numbers = hooks.iter().zip(0..).filter(|(hook, _)| is_needed(image, hook.function));
    let gate = offset_of!(ArenaHeader, signal);
    numbers.map(|(_, number)| ThroughAgent { number, helper: None, gate }).collect()
}

/// The first instructions of `runtime.asyncPreempt`, which no other function of Go has.
const PREEMPT: [u8; 5] = [0x55, 0x48, 0x89, 0xe5, 0x9c];

/// Returns the place in `runtime.asyncPreempt` at which a preempted goroutine is about to continue: after its first call,
/// which returns when the goroutine is scheduled again. Every register is restored after that, so all are free, and rbp
/// points at the saved rbp, next to the address at which the goroutine continues. Returns `None` if there is no such place.
pub(crate) fn resumption(image: &Image) -> Option<Redirected> {
    if !image.facts.go {
        return None;
    }
    let code_of = |i: usize| image.code_at(image.functions[i].address, image.functions[i].size);
    let is_preempt = |&i: &usize| code_of(i).is_some_and(|code| code.starts_with(&PREEMPT));
    let function = (0..image.functions.len()).find(is_preempt)?;
    let start = image.functions[function].address;
    let code: Vec<Instruction> =
        Decoder::with_ip(64, code_of(function)?, start, DecoderOptions::NONE).into_iter().collect();
    let call = code.iter().position(|i| i.flow_control() == FlowControl::Call)?;
    let window = window(&code[call + 1..])?;
    let is_entered = |i: &Instruction| {
        let is_branch = matches!(i.op0_kind(), OpKind::NearBranch64) && i.op_count() == 1;
        is_branch && (window.0..window.1).contains(&i.near_branch_target())
    };
    if code.iter().any(is_entered) {
        return None;
    }
    let at = window.0;
    Some(Redirected { at, end: at, function: Some(function), purpose: Purpose::Resume, window })
}

/// Returns the first instructions that a jump overwrites, as a half-open range of addresses, or `None` if there are branches
/// among them.
fn window(code: &[Instruction]) -> Option<(u64, u64)> {
    let lo = code.first()?.ip();
    for i in code {
        if i.is_invalid() || i.flow_control() != FlowControl::Next {
            return None;
        }
        if i.next_ip() - lo >= JUMP {
            return Some((lo, i.next_ip()));
        }
    }
    None
}

/// Returns where `runtime.asyncPreempt` is, or `None` if it is not led through the agent. A thread in it may be about to return
/// into a patch, or to the copy of an instruction.
pub fn preemption(image: &Image) -> Option<Range<u64>> {
    let at = resumption(image)?.at;
    let function = image.functions.iter().find(|f| (f.address..f.address + f.size).contains(&at))?;
    Some(function.address..function.address + function.size)
}

/// Returns whether a branch of a function leads into its first instructions, but not to the first one. A goroutine that waits in a
/// call of such a function when hooks are written would run that branch into the patch; no thread's stack shows it.
pub fn is_reentered(image: &Image, function: &Function) -> bool {
    let Some(code) = image.code_at(function.address, function.size) else { return false };
    let patch = function.address + 1..function.address + JUMP;
    let leads_there = |i: &Instruction| {
        i.op_count() == 1 && i.op0_kind() == OpKind::NearBranch64 && patch.contains(&i.near_branch_target())
    };
    Decoder::with_ip(64, code, function.address, DecoderOptions::NONE).iter().any(|i| leads_there(&i))
}

/// The number of the system call by which a signal handler returns.
const RT_SIGRETURN: u64 = 15;

/// Returns the functions of a Go program that cannot be hooked, by index in the image.
pub(crate) fn entered_otherwise(image: &Image) -> Failed {
    if !image.facts.go {
        return Failed::new();
    }
    let reason = |i: usize| {
        let function = &image.functions[i];
        let code = image.code_at(function.address, function.size)?;
        reason(code).map(|reason| (i, reason))
    };
    (0..image.functions.len()).filter_map(reason).collect()
}

/// Returns why a function with this code cannot be hooked, or `None` if it can.
fn reason(code: &[u8]) -> Option<Reason> {
    if matches!(code, [0x90, 0xe8, _, _, _, _, 0x90, ..]) {
        return Some(Reason::JumpedInto);
    }
    let mut number = None;
    for (n, i) in Decoder::new(64, code, DecoderOptions::NONE).iter().enumerate() {
        match i.code() {
            Code::Syscall if number == Some(RT_SIGRETURN) => return Some(Reason::SignalReturn),
            Code::Pushfq => return Some(Reason::Flags),
            _ => {}
        }
        number = loaded(&i).filter(|_| n == 0);
        // The flags are the caller's as long as no instruction has written any.
        if i.is_invalid() || i.flow_control() != FlowControl::Next || i.rflags_modified() != 0 {
            break;
        }
    }
    None
}

/// Returns the constant that an instruction loads into rax.
fn loaded(i: &Instruction) -> Option<u64> {
    let is_rax = i.op_count() == 2 && matches!(i.op0_register(), Register::RAX | Register::EAX);
    let is_move = matches!(i.code(), Code::Mov_r32_imm32 | Code::Mov_rm32_imm32 | Code::Mov_rm64_imm32);
    let is_constant = matches!(i.op1_kind(), OpKind::Immediate32 | OpKind::Immediate32to64);
    (is_rax && is_move && is_constant).then(|| i.immediate(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TEXT, image};
    use gprofinject_image::ElfType;

    #[test]
    fn what_is_not_entered_by_a_call() {
        let goexit = [0x90, 0xe8, 0, 0, 0, 0, 0x90];
        let sigreturn = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05, 0xcd, 3];
        let write = [0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0xc3];
        let preempt = [0x55, 0x48, 0x89, 0xe5, 0x9c, 0x9d, 0x5d, 0xc3];
        // sub rsp,8; pushfq; popfq; ret
        let own_flags = [0x48, 0x83, 0xec, 8, 0x9c, 0x9d, 0xc3];
        let reasons: [(&[u8], Option<Reason>); 5] = [
            (&goexit, Some(Reason::JumpedInto)),
            (&sigreturn, Some(Reason::SignalReturn)),
            (&write, None),
            (&preempt, Some(Reason::Flags)),
            (&own_flags, None),
        ];
        for (code, expected) in reasons {
            let mut image = image(ElfType::Exec, TEXT, code, &[code.len()]);
            assert!(entered_otherwise(&image).is_empty());
            image.facts.go = true;
            assert_eq!(entered_otherwise(&image).get(&0).copied(), expected, "{code:x?}");
        }
    }

    #[test]
    fn branches_into_the_first_instructions() {
        // xor eax,eax; inc eax; ..; jl TARGET; ret
        let is = |target: u8| {
            let code = [0x31, 0xc0, 0xff, 0xc0, 0x83, 0xf8, 9, 0x7c, target.wrapping_sub(9), 0xc3];
            let image = image(ElfType::Exec, TEXT, &code, &[code.len()]);
            is_reentered(&image, &image.functions[0])
        };
        assert_eq!([0, 2, 4, 7].map(is), [false, true, true, false]);
    }

    #[test]
    fn where_preempted_goroutines_continue() {
        // push rbp; mov rbp,rsp; pushfq; call ..; nop; mov rax,[rsp]; popfq; pop rbp; ret
        let code =
            [0x55, 0x48, 0x89, 0xe5, 0x9c, 0xe8, 0x40, 0, 0, 0, 0x90, 0x48, 0x8b, 4, 0x24, 0x9d, 0x5d, 0xc3];
        let place = |code: &[u8]| {
            let mut image = image(ElfType::Exec, TEXT, code, &[code.len()]);
            assert_eq!(resumption(&image), None, "not Go");
            image.facts.go = true;
            resumption(&image).map(|place| (place.at - TEXT, place.end - TEXT, place.window.1 - TEXT))
        };
        assert_eq!(place(&code), Some((10, 10, 15)));
        let mut branch = code;
        branch[10] = 0xeb;
        assert_eq!(place(&branch), None, "a branch among the instructions");
        assert_eq!(place(&code[..12]), None, "too short");
    }
}
