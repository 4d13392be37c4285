//! The system calls of a standalone program that lead to the agent, and the bytes that a jump overwrites for that.
//!
//! A new thread has its parent's gs, which leads to the parent's words, so the agent has to be there before the first hooked
//! function runs in it. No function can be interposed in a static program. So each `syscall` instruction that may make a
//! thread or a process, or execute a program, is relocated into the arena with the instructions around it, and the
//! agent makes the system call.
//!
//! ```text
//! fork:                                    fork:
//!   b8 39 00 00 00     mov  eax, 57          b8 39 00 00 00     mov  eax, 57
//!   0f 05              syscall               e9 ..              jmp  code in the arena
//!   48 3d 00 f0 ff ff  cmp  rax, -4096       ..                 (dead)
//! ```

use crate::decide::gs;
use crate::decide::hook::Hook;
use crate::decide::verdict::{Failed, Reason};
use crate::flow::facts::Flow;
use crate::flow::head::hook_point;
use crate::flow::system_calls::{SystemCall, find};
use crate::x86::jump::JUMP;
use crate::x86::relocate::call::Call;
use crate::x86::relocate::instructions::relocate;
use crate::x86::system_call::SPECIAL;
use gprofinject_image::Image;

/// What the agent does at a place in the middle of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It makes a system call.
    SystemCall {
        /// Whether its number is known. It is then one of [`SPECIAL`].
        is_known: bool,
    },
    /// It lets a preempted goroutine continue in a relocated instruction: see [`crate::decide::go`].
    Resume,
}

/// A place that leads to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirected {
    /// The address of the `syscall` instruction, or of the instruction before which the goroutine's address is replaced.
    pub(crate) at: u64,
    /// The address after the `syscall` instruction, or `at`.
    pub(crate) end: u64,
    /// The function that contains it, by its index in the image, or `None` between functions.
    pub(crate) function: Option<usize>,
    /// What the agent does there.
    pub(crate) purpose: Purpose,
    /// The first and last address of the instructions that are relocated, as a half-open range. A jump overwrites the
    /// first bytes.
    pub(crate) window: (u64, u64),
}

/// The system calls that a program makes by instructions of its own and that may be one of [`SPECIAL`].
#[derive(Debug, Default)]
pub(crate) struct SystemCalls {
    /// Those that lead to the agent, sorted by address.
    pub(crate) redirected: Vec<Redirected>,
    /// The addresses of those that cannot be led there, sorted.
    pub(crate) unredirected: Vec<u64>,
    /// The address of an instruction by which the program uses the register gs, or `None` if it does not seem to.
    pub(crate) uses_gs: Option<u64>,
    /// The functions with system calls that must stay where they are, by their indices in the image.
    compared: Vec<usize>,
}

impl SystemCalls {
    /// Finds the system calls of a program, and chooses what is relocated for each.
    pub(crate) fn of(image: &Image, flow: &Flow) -> SystemCalls {
        let found = find(image, flow);
        let mut calls = SystemCalls { uses_gs: gs::use_of(image, flow, &found), ..SystemCalls::default() };
        for call in found {
            let is_known = match call.number {
                Some(number) if SPECIAL.contains(&number) => true,
                None if call.is_compared => {
                    calls.compared.extend(call.function);
                    continue;
                }
                None => false,
                Some(_) => continue,
            };
            // Two windows must not overlap.
            let from = calls.redirected.last().map_or(0, |last| last.window.1);
            match window(image, flow, &call, from) {
                Some(window) => calls.redirected.push(Redirected {
                    at: call.at,
                    end: call.end(),
                    function: call.function,
                    purpose: Purpose::SystemCall { is_known },
                    window,
                }),
                None => calls.unredirected.push(call.at),
            }
        }
        calls
    }

    /// Does the same for a program that makes most system calls by its C library's functions, which lead to the agent in another way. Those
    /// that cannot be led there stay as they are.
    pub(crate) fn that_can_be_redirected(image: &Image, flow: &Flow) -> SystemCalls {
        SystemCalls { unredirected: Vec::new(), ..SystemCalls::of(image, flow) }
    }

    /// Adds the place at which a Go program's preempted goroutines continue.
    pub(crate) fn add(&mut self, place: Redirected) {
        let index = self.redirected.partition_point(|call| call.at < place.at);
        let is_apart = |call: &Redirected| call.window.1 <= place.window.0 || call.window.0 >= place.window.1;
        if self.redirected.iter().all(is_apart) {
            self.redirected.insert(index, place);
        }
    }

    /// Returns the functions that cannot be hooked because the C library compares the addresses at which signals interrupt
    /// them: it would not know those of their relocated instructions.
    pub(crate) fn compared(&self) -> Failed {
        self.compared.iter().map(|&function| (function, Reason::CancellationPoint)).collect()
    }

    /// Returns the functions whose hooks overwrite or relocate bytes of a window. They cannot be hooked.
    pub(crate) fn in_the_way_of(&self, hooks: &[Hook]) -> Failed {
        let mut failed = Failed::new();
        if self.redirected.is_empty() {
            return failed;
        }
        let touches = |(lo, hi): (u64, u64)| {
            let from = self.redirected.partition_point(|call| call.window.1 <= lo);
            self.redirected.get(from).is_some_and(|call| call.window.0 < hi)
        };
        for hook in hooks {
            if hook.spans().chain([(hook.at, hook.at + hook.relocated)]).any(touches) {
                failed.insert(hook.function, Reason::Agent);
            }
        }
        failed
    }
}

/// Chooses the instructions that are relocated for a system call. None of them is before `from`. Returns `None` if no
/// choice is possible.
///
/// Those that begin with the `syscall` are preferred: a thread that waits in the system call can then repeat it at its
/// old address.
fn window(image: &Image, flow: &Flow, call: &SystemCall, from: u64) -> Option<(u64, u64)> {
    let place = call.run.iter().position(|&start| start == call.at)?;
    let end_for = |start: u64| {
        let ends = call.run[place + 1..].iter().copied();
        ends.into_iter().find(|&end| end - start >= JUMP).map(|end| (start, end))
    };
    let starts = call.run[..=place].iter().rev().copied();
    let windows = starts.filter(|&start| start >= from).filter_map(end_for);
    let possible: Vec<(u64, u64)> = windows.filter(|&window| is_possible(image, call, window)).collect();
    // The function's own hook needs its first instructions.
    let head = call.function.map_or(0, |i| {
        let len = u64::from(flow.functions[i].head.len).max(JUMP);
        hook_point(image, &image.functions[i]) + len
    });
    let is_apart = |&&(start, _): &&(u64, u64)| start >= head;
    possible.iter().find(is_apart).or(possible.first()).copied()
}

/// Returns whether the instructions can be relocated, and are the same in the file and in memory.
fn is_possible(image: &Image, call: &SystemCall, (lo, hi): (u64, u64)) -> bool {
    let is_free = image.removed.iter().all(|removed| removed.end() <= lo || removed.address >= hi)
        && image.facts.text_relocations.iter().all(|&word| word + 8 <= lo || word >= hi);
    // Only whether the encoder can do it matters here, not the place.
    let elsewhere = lo.wrapping_add(0x100_0000);
    let is_movable = |(lo, hi): (u64, u64)| {
        let code = image.code_at(lo, hi - lo);
        code.is_some_and(|code| relocate(code, lo, elsewhere, lo, Call::Emulated, &|_| None).is_ok())
    };
    is_free && is_movable((lo, call.at)) && is_movable((call.end(), hi))
}

#[cfg(test)]
mod tests;
