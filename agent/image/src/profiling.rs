//! Programs that were built for profiling: the calls of the C library's counters are removed from the code
//! before anything is decided about it, and the plan overwrites them in memory.
//!
//! ```text
//! push rbp                              push rbp
//! mov  rbp, rsp                         mov  rbp, rsp
//! call [mcount]                         nop                    -pg
//!
//! call __fentry__@plt                   nop                    -pg -mfentry
//!
//! mov  rsi, [rsp+8]                     nop                    -finstrument-functions: the return address
//! mov  rdi, rbx                         mov  rdi, rbx
//! call __cyg_profile_func_enter@plt     nop
//! ..
//! jmp  __cyg_profile_func_exit@plt      ret; nop
//! ```
//!
//! What remains is the function as it would be without that option, with some nops in it. Counters preserve
//! all registers (except those on which no caller of a -pg function relies), and hooks are ordinary functions
//! that do nothing, so a caller cannot distinguish them from nops. The load before a hook's call is the call's
//! second argument, which is dead when the call has been removed (`argument`, `liveness`). The load is removed
//! as well, because it would count as a use of the function's own return address.

mod argument;
mod liveness;

use crate::facts::Facts;
use crate::file::imports::Stubs;
use crate::function::FunctionKind;
use crate::image::Image;
use crate::profiling::argument::Arguments;
use crate::profiling::liveness::Ways;
use crate::removed::Removed;
use crate::x86::{has_branch, is_call, is_jump};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, InstructionInfoFactory};
use std::borrow::Cow;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Callee {
    Counter,
    Hook,
}

/// The functions that a call may lead to.
struct Callees<'i> {
    facts: &'i Facts,
    stubs: &'i Stubs,
    hooks: bool,
    /// For each function, whether it has code in another place.
    split: Vec<bool>,
}

impl Callees<'_> {
    fn by_word(&self, word: u64) -> Option<Callee> {
        let profiling = &self.facts.profiling;
        if profiling.counters.binary_search(&word).is_ok() {
            return Some(Callee::Counter);
        }
        (self.hooks && profiling.hooks.binary_search(&word).is_ok()).then_some(Callee::Hook)
    }

    fn by_stub(&self, stub: u64) -> Option<Callee> {
        let at = self.stubs.binary_search_by_key(&stub, |&(stub, _)| stub).ok()?;
        self.by_word(self.stubs[at].1)
    }

    fn of(&self, i: &Instruction) -> Option<Callee> {
        match i.code() {
            Code::Call_rel32_64 | Code::Jmp_rel32_64 => self.by_stub(i.near_branch_target()),
            Code::Call_rm64 | Code::Jmp_rm64 if i.is_ip_rel_memory_operand() => {
                self.by_word(i.ip_rel_memory_address())
            }
            _ => None,
        }
    }

    /// Returns the offset of the last byte at which such a call may begin. Most functions have none, and in
    /// the others it is near the start.
    fn last(&self, bytes: &[u8], address: u64) -> Option<usize> {
        (0..bytes.len()).rev().find(|&at| {
            let relative = |operand: usize| {
                let rest = bytes.get(at + operand..)?;
                let next = address + (at + operand + 4) as u64;
                Some(next.wrapping_add(i32::from_le_bytes(*rest.first_chunk()?) as u64))
            };
            let callee = match bytes[at] {
                0xe8 | 0xe9 => relative(1).and_then(|stub| self.by_stub(stub)),
                0xff if matches!(bytes.get(at + 1), Some(0x15 | 0x25)) => {
                    relative(2).and_then(|word| self.by_word(word))
                }
                _ => None,
            };
            callee.is_some()
        })
    }
}

impl Image<'_> {
    /// Removes the calls of counters and, with `hooks`, those of the empty hooks of -finstrument-functions.
    /// (A preloaded library may define these hooks.)
    pub fn remove_profiling(&mut self, hooks: bool) {
        let profiling = &self.facts.profiling;
        if profiling.counters.is_empty() && (profiling.hooks.is_empty() || !hooks) {
            return;
        }
        let callees =
            Callees { facts: &self.facts, stubs: &self.details().stubs, hooks, split: self.split() };
        let mut factory = InstructionInfoFactory::new();
        let mut removed = Vec::new();
        let mut hooks_removed = false;
        for (index, f) in self.functions.iter().enumerate() {
            let Some(bytes) = self.code_at(f.address, f.size) else { continue };
            let Some(last) = callees.last(bytes, f.address) else { continue };
            let before = removed.len();
            match self.calls(index, bytes, last, &callees, &mut factory, &mut removed) {
                Some(hooks) => hooks_removed |= hooks,
                None => removed.truncate(before),
            }
        }
        for part in &mut self.code {
            let end = part.address + part.bytes.len() as u64;
            let inside = |r: &&Removed| r.address >= part.address && r.address + u64::from(r.len) <= end;
            for r in removed.iter().filter(inside) {
                let at = (r.address - part.address) as usize;
                r.fill(&mut Cow::to_mut(&mut part.bytes)[at..at + usize::from(r.len)]);
            }
        }
        removed.sort_unstable_by_key(|r| r.address);
        self.removed = removed;
        self.facts.hooks_removed = hooks_removed;
    }

    /// Collects the calls in a function, and returns whether hooks are among them. Returns `None` if the
    /// function cannot be decoded, because its bytes may then mean something else.
    fn calls(
        &self,
        function: usize,
        bytes: &[u8],
        last: usize,
        callees: &Callees,
        factory: &mut InstructionInfoFactory,
        removed: &mut Vec<Removed>,
    ) -> Option<bool> {
        let lo = self.functions[function].address;
        let mut decoder = Decoder::with_ip(64, bytes, lo, DecoderOptions::NONE);
        let mut i = Instruction::default();
        let mut arguments = Arguments::default();
        if callees.split[function] {
            arguments.leave();
        }
        let mut hooks = false;
        while decoder.can_decode() && (hooks || decoder.position() <= last) {
            decoder.decode_out(&mut i);
            if i.is_invalid() {
                return None;
            }
            let jumps = is_jump(&i);
            let this = Removed { address: i.ip(), len: i.len() as u8, returns: jumps };
            match callees.of(&i) {
                Some(callee) => {
                    if callee == Callee::Hook {
                        removed.extend(arguments.call());
                        hooks = true;
                    }
                    removed.push(this);
                }
                None if callees.hooks => {
                    arguments.step(&i, this, factory);
                    if has_branch(&i) && !is_call(&i) && !self.stays(function, i.near_branch_target()) {
                        arguments.leave();
                    }
                }
                None => {}
            }
        }
        let open = arguments.open();
        if hooks && !open.is_empty() {
            let is_hook = |i: &Instruction| callees.of(i) == Some(Callee::Hook);
            let ways = Ways::of(bytes, lo, is_hook, factory);
            removed.extend(open.into_iter().filter(|load| ways.is_dead_behind(load.address)));
        }
        removed.extend(arguments.loads());
        Some(hooks)
    }

    /// Returns for each function whether it has a cold part. Exceptions enter a cold part without a jump, so
    /// a part of an unknown function may belong to any function.
    fn split(&self) -> Vec<bool> {
        let is_stray = |index: usize| {
            matches!(self.functions[index].kind, FunctionKind::Cold(_)) && self.parent(index).is_none()
        };
        let any = !self.details().landing_pads.is_empty() && (0..self.functions.len()).any(is_stray);
        let mut split = vec![any; self.functions.len()];
        for parent in (0..self.functions.len()).filter_map(|index| self.parent(index)) {
            split[parent] = true;
        }
        split
    }

    /// Whether a jump stays in the function. Otherwise it calls another one.
    fn stays(&self, function: usize, target: u64) -> bool {
        let f = &self.functions[function];
        let start = self.functions.binary_search_by_key(&target, |f| f.address);
        (f.address..f.address + f.size).contains(&target)
            || start.is_ok_and(|at| !matches!(self.functions[at].kind, FunctionKind::Cold(_)))
    }
}
