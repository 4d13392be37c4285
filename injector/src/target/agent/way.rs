//! Moves threads out of the way of the patches.

use std::ops::Range;
use std::time::Instant;

use anyhow::{Result, anyhow};

use crate::os::proc::{self, Mapping};
use crate::target::agent::attachment::{Attachment, Step};
use crate::target::agent::modules::Modules;
use crate::target::agent::overwritten::Overwritten;
use crate::target::agent::stacks;
use crate::target::threads::deadline;
use crate::target::threads::memory::Memory;
use crate::target::threads::stopped::Stopped;
use crate::target::threads::thread::Thread;

impl Attachment {
    /// Makes sure that no thread stands where something will be overwritten.
    pub(super) fn make_room(
        &self,
        stopped: &mut Stopped,
        memory: &Memory,
        libc: &Range<u64>,
        modules: &Modules<'_>,
        until: Instant,
    ) -> Result<Step<()>> {
        loop {
            let late = Instant::now() > until;
            // Threads that ran until now may have mapped stacks for new ones.
            let mappings = proc::mappings(self.pid)?;
            let busy = self.move_away(stopped, memory, &mappings, libc, modules);
            match busy.first() {
                None => return Ok(Step::Done(())),
                Some(&(tid, at)) if late => return Ok(Step::Later(stays(tid, at))),
                Some(&(tid, at)) => {
                    let is_busy = |thread: &Thread| busy.iter().any(|(tid, _)| *tid == thread.tid);
                    if !stopped.run_some(is_busy, stopped.turn().0, until)? {
                        return Ok(Step::Later(stays(tid, at)));
                    }
                }
            }
        }
    }

    /// Moves threads out of what will be overwritten. Returns those that have to run on before they can be
    /// moved, each with its present address.
    fn move_away(
        &self,
        stopped: &mut Stopped,
        memory: &Memory,
        mappings: &[Mapping],
        libc: &Range<u64>,
        modules: &Modules<'_>,
    ) -> Vec<(i32, u64)> {
        let overwritten = &modules.overwritten;
        let mut busy = Vec::new();
        for thread in stopped.threads.iter_mut().filter(|thread| thread.fresh) {
            let at = thread.registers.rip;
            if makes_thread(memory, thread, libc)
                || self.is_in_preemption(at)
                || self.detours().iter().any(|d| inside(d.at, d.before.len() as u32, at))
            {
                busy.push((thread.tid, at));
            } else if overwritten.contains(at)
                || thread.repeats_call() && overwritten.contains(at - SYSCALL_LEN)
            {
                // In a standalone program, a copy of the `syscall` is directly before such a copy.
                match modules.moved(at) {
                    Some(copy) => thread.move_to(copy),
                    None => busy.push((thread.tid, at)),
                }
            }
        }
        let patched = self.watched(overwritten);
        for thread in stopped.threads.iter_mut().filter(|thread| thread.fresh) {
            if deadline::has_passed() {
                // A thread that was not examined counts as one in the way, so nothing is changed.
                busy.push((thread.tid, thread.registers.rip));
                break;
            }
            thread.fresh = false;
            let end = self.end_of_stack(memory, thread);
            let saved = stacks::find(memory, thread, end, mappings, &patched, |at, word| {
                overwritten.is_returned_to(word) && stacks::may_go_on_at(memory, at, word, &self.arenas)
                    || self.is_in_preemption(word) && stacks::is_interrupted(memory, at, &self.arenas)
            });
            busy.extend(saved.map(|word| (thread.tid, word)));
        }
        busy
    }

    /// Whether a thread stands where something is overwritten, or will when a signal handler returns.
    pub(super) fn is_in_patch(
        &self,
        thread: &Thread,
        memory: &Memory,
        mappings: &[Mapping],
        overwritten: &Overwritten,
    ) -> bool {
        let is_in = |at: u64| overwritten.contains(at) || self.is_in_preemption(at);
        let end = self.end_of_stack(memory, thread);
        is_in(thread.registers.rip)
            || stacks::find(memory, thread, end, mappings, &self.watched(overwritten), |at, word| {
                is_in(word) && stacks::is_interrupted(memory, at, &self.arenas)
            })
            .is_some()
    }

    /// Returns the addresses at which a thread may be in the way of patches.
    fn watched(&self, overwritten: &Overwritten) -> Vec<Range<u64>> {
        let preemption = self.go.iter().map(|go| go.preemption.clone());
        overwritten.extents().into_iter().chain(preemption).collect()
    }
}

fn stays(tid: i32, at: u64) -> anyhow::Error {
    anyhow!(
        "thread {tid} stays at {at:#x}, among instructions that are to be overwritten; try again, or leave the \
         function out with -X"
    )
}

/// The number of bytes of a `syscall` instruction.
const SYSCALL_LEN: u64 = 2;

fn inside(address: u64, len: u32, at: u64) -> bool {
    at > address && at < address + u64::from(len)
}

/// Whether a thread is about to create another one by a system call that will be redirected to the agent. It
/// must not stand between the call's two instructions then, and the kernel must not be about to restart the
/// call.
fn makes_thread(memory: &Memory, thread: &Thread, libc: &Range<u64>) -> bool {
    const RESTART: i64 = -513;
    let registers = &thread.registers;
    let calls = [libc::SYS_clone, libc::SYS_clone3, libc::SYS_fork];
    if registers.rax as i64 == RESTART && calls.contains(&(registers.orig_rax as i64)) {
        return true;
    }
    libc.contains(&registers.rip)
        && memory.bytes(registers.rip - 5, 7).is_ok_and(|bytes| {
            let number = i64::from(bytes[1]) | i64::from(bytes[2]) << 8;
            bytes[0] == 0xb8 && bytes[3..] == [0, 0, 0x0f, 0x05] && calls.contains(&number)
        })
}
