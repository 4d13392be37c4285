//! Whether any path through a function reads rsi after an instruction.
//!
//! ```text
//! mov rsi, [rsp+24]     ; for one of two calls of hooks: nothing reads it when both are removed
//! je  other
//! call exit
//! ..
//! other:
//! call enter
//! ```

use crate::profiling::argument::uses;
use crate::x86::has_branch;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Register};

/// What an instruction does with rsi, and where control continues.
#[derive(Clone, Copy, Debug)]
enum Step {
    Read,
    /// rsi is written, or changed by a call that has no argument in it; or the function has returned.
    Dead,
    Next,
    To(u64),
    NextOr(u64),
}

/// The instructions of a function, by their addresses.
pub(crate) struct Ways {
    steps: Vec<(u64, Step)>,
}

impl Ways {
    /// Returns the paths through a function. `is_hook` recognises the calls of hooks.
    pub(crate) fn of(
        bytes: &[u8],
        address: u64,
        is_hook: impl Fn(&Instruction) -> bool,
        factory: &mut InstructionInfoFactory,
    ) -> Ways {
        let mut steps = Vec::new();
        for i in &mut Decoder::with_ip(64, bytes, address, DecoderOptions::NONE) {
            let step = if is_hook(&i) { Step::Dead } else { step(&i, factory) };
            steps.push((i.ip(), step));
        }
        Ways { steps }
    }

    /// Whether no path reads rsi after the instruction at `address`.
    pub(crate) fn is_dead_behind(&self, address: u64) -> bool {
        let Ok(first) = self.find(address) else { return false };
        let mut seen = vec![false; self.steps.len()];
        let mut work = vec![first + 1];
        while let Some(at) = work.pop() {
            // Another function's code begins after the function's end.
            let Some(&(_, step)) = self.steps.get(at) else { return false };
            if std::mem::replace(&mut seen[at], true) {
                continue;
            }
            let target = match step {
                Step::Read => return false,
                Step::Dead => continue,
                Step::Next => {
                    work.push(at + 1);
                    continue;
                }
                Step::To(target) => target,
                Step::NextOr(target) => {
                    work.push(at + 1);
                    target
                }
            };
            match self.find(target) {
                Ok(target) => work.push(target),
                Err(_) => return false,
            }
        }
        true
    }

    fn find(&self, address: u64) -> Result<usize, usize> {
        self.steps.binary_search_by_key(&address, |&(at, _)| at)
    }
}

fn step(i: &Instruction, factory: &mut InstructionInfoFactory) -> Step {
    let rsi = uses(i, Register::RSI, factory);
    match i.flow_control() {
        _ if i.is_invalid() || rsi.reads => Step::Read,
        _ if rsi.writes => Step::Dead,
        FlowControl::Next => Step::Next,
        // rsi contains no result (System V ABI for x86-64, 3.2.3).
        FlowControl::Return => Step::Dead,
        FlowControl::UnconditionalBranch if has_branch(i) => Step::To(i.near_branch_target()),
        FlowControl::ConditionalBranch if has_branch(i) => Step::NextOr(i.near_branch_target()),
        // A call may take it as an argument.
        _ => Step::Read,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether rsi is dead after the first instruction, which has five bytes; `call` is a hook's.
    fn dead(rest: &[u8]) -> bool {
        let code = [&[0x48, 0x8b, 0x74, 0x24, 8], rest].concat();
        let is_hook = |i: &Instruction| i.flow_control() == FlowControl::Call;
        Ways::of(&code, 0x1000, is_hook, &mut InstructionInfoFactory::new()).is_dead_behind(0x1000)
    }

    #[test]
    fn every_way_counts() {
        const CALL: [u8; 5] = [0xe8, 0, 0, 0, 0];
        let both = |first: &[u8], second: &[u8]| {
            // je over first; first; ret; second; ret
            dead(&[&[0x74, first.len() as u8 + 1], first, &[0xc3], second, &[0xc3]].concat())
        };
        assert!(both(&CALL, &CALL));
        assert!(both(&CALL, &[0x31, 0xf6])); // xor esi, esi: a write that iced knows for one
        assert!(both(&CALL, &[0x89, 0xfe])); // mov esi, edi
        assert!(!both(&CALL, &[0x89, 0xf7])); // mov edi, esi
        assert!(!both(&[0x89, 0xf7], &CALL));
        assert!(!both(&CALL, &[0xff, 0xd0])); // call rax
        assert!(!both(&CALL, &[0xff, 0xe0])); // jmp rax
        assert!(!both(&CALL, &[0xeb, 0x7f])); // jmp out of the function
        assert!(dead(&[0xeb, 0xfe])); // for ever
        assert!(!dead(&[0x90])); // runs on
    }
}
