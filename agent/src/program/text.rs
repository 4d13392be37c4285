//! Patches the program's text when the hooks are set up, and restores it in children that are not followed.
//! Jumps in the arena that depend on a patch are changed together with it (see
//! [`gprofinject_abi::plan::CallJump`]).
#![allow(unsafe_code, reason = "the program's text is read and overwritten")]

use crate::os::files;
use crate::os::memory;
use crate::os::task;
use crate::os::words;
use crate::program::agent::Agent;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};
use gprofinject_abi::plan::{Maker, Patch};
use gprofinject_abi::region::PAGE;
use linux_raw_sys::elf;

/// Writes the patches that are the agent's. During the writes, the pages are writable and not executable. The
/// caller has checked that the original bytes are in place.
pub(crate) fn patch(agent: &Agent) -> Result<(), i32> {
    rewrite(
        agent,
        true,
        |patch| if patch.by == Maker::Agent.code() { &patch.replacement } else { &patch.original },
    )
}

/// Writes all patches, after Frida's gum has written its own. All other threads are stopped.
pub(crate) fn patch_again(agent: &Agent) -> Result<(), i32> {
    rewrite(agent, true, |patch| &patch.replacement)
}

/// Writes the original bytes. All other threads are stopped.
pub(crate) fn unpatch(agent: &Agent) -> Result<(), i32> {
    rewrite(agent, false, |patch| &patch.original)
}

fn rewrite(agent: &Agent, patched: bool, bytes: impl Fn(&Patch) -> &[u8]) -> Result<(), i32> {
    let writable = memory::PROT_READ | memory::PROT_WRITE;
    if let Err(errno) = protect(agent, |_| writable) {
        // This gives the segments that were changed their own protection back; the others have it already.
        let _ = protect(agent, |flags| flags);
        return Err(errno);
    }
    write(agent, patched, bytes);
    protect(agent, |flags| flags)
}

/// How many slow-path calls have tried to restore the text so far.
static TRIES: AtomicU32 = AtomicU32::new(0);
const MOST_TRIES: u32 = 4;

/// Restores the program's text on the slow path of a forked child that is not counted, so that the child has
/// no more overhead. Frames that are on the stack return through their thunks, which stay mapped.
pub(crate) fn restore(agent: &Agent) {
    if TRIES.load(Ordering::Relaxed) >= MOST_TRIES {
        return;
    }
    TRIES.fetch_add(1, Ordering::Relaxed);
    // Another process that shares this memory may be executing the thunks, or the bytes that would be
    // overwritten. A child of vfork has another process number.
    if task::getpid() != agent.pid || !files::has_one_thread() || may_be_in_handler(agent) {
        return;
    }
    TRIES.store(MOST_TRIES, Ordering::Relaxed);
    let Ok(blocked) = task::block_signals() else { return };
    // The text stays executable throughout, because a process that shares the memory without being a thread
    // keeps running.
    if protect(agent, |flags| flags | memory::PROT_WRITE).is_ok() {
        write(agent, false, |patch| &patch.original);
    }
    let _ = protect(agent, |flags| flags);
    let _ = task::set_blocked_signals(blocked);
}

/// Returns whether a signal handler may be running, which may have interrupted the instructions of a patch.
/// Only the main thread's own stack is known to be there up to its end.
fn may_be_in_handler(agent: &Agent) -> bool {
    /// The kernel lets no stack grow nearer than this to what is below it.
    const MOST: u64 = 64 << 20;
    let mut at = &raw const agent as u64 & !7;
    if words::thread_pointer() != agent.main_thread || at > agent.stack_end || agent.stack_end - at > MOST {
        return true;
    }
    while at < agent.stack_end {
        // SAFETY: the address lies on the main thread's stack, between the frame of this function and the oldest end.
        if agent.is_restorer(unsafe { *(at as *const u64) }) {
            return true;
        }
        at += 8;
    }
    false
}

/// Writes the bytes of all patches. `patched` selects the replacements and their displacements, or the
/// original bytes.
fn write(agent: &Agent, patched: bool, bytes: impl Fn(&Patch) -> &[u8]) {
    for jump in agent.call_jumps {
        let displacement = if patched { jump.displacement } else { 0 };
        // SAFETY: the set-up has checked that the displacement lies inside the arena, and `protect` has made
        // the arena writable.
        unsafe { ((agent.arena_lo + u64::from(jump.at)) as *mut u32).write_unaligned(displacement) };
    }
    for patch in agent.patches {
        // SAFETY: the set-up has compared the text there with the plan's, and `protect` has made it writable.
        // The callers have made sure that no thread executes these instructions. The plan's `len` is no
        // longer than its arrays, which `get` checks.
        unsafe {
            let to = patch.address.wrapping_add(agent.bias) as *mut u8;
            let from = bytes(patch).get(..patch.len as usize).unwrap_or_default();
            ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
        }
    }
}

/// Sets the protection of the program's executable segments from the one they were loaded with, and the arena's if it
/// changes with them.
fn protect(agent: &Agent, to: impl Fn(u64) -> u64) -> Result<(), i32> {
    let len = agent.copies_hi.wrapping_sub(agent.arena_lo);
    let arena = (agent.arena_lo, len, memory::PROT_READ | memory::PROT_EXEC);
    let arena = Some(arena).filter(|_| !agent.call_jumps.is_empty());
    for (lo, len, loaded) in executable_segments(agent).chain(arena) {
        // SAFETY: these are the program's text and the agent's arena. If `to` removes the permission to
        // execute, the caller has made sure that no other thread runs.
        unsafe { memory::mprotect(lo, len, to(loaded)) }?;
    }
    Ok(())
}

/// Returns whether the program's own text is writable. Frida's gum would make it read-only.
pub(crate) fn is_writable(agent: &Agent) -> bool {
    executable_segments(agent).any(|(_, _, loaded)| loaded & memory::PROT_WRITE != 0)
}

/// Address, bytes and protection of the program's executable pages, as the program was loaded.
fn executable_segments(agent: &Agent) -> impl Iterator<Item = (u64, u64, u64)> {
    let (bias, (at, size, count)) = (agent.bias, agent.headers);
    (0..count).filter_map(move |i| {
        // struct Elf64_Phdr: type, flags, offset, vaddr, paddr, filesz, memsz, align.
        let header = (at + i * size) as *const u32;
        // SAFETY: the auxiliary vector, which the kernel or the injector has made, says that the program headers are there.
        let (kind, flags, address, len) = unsafe {
            let words = header.cast::<u64>();
            (*header, *header.add(1), *words.add(2), *words.add(5))
        };
        if kind != elf::PT_LOAD || flags & elf::PF_X == 0 {
            return None;
        }
        // PF_X, PF_W, PF_R are 1, 2, 4; PROT_READ, PROT_WRITE, PROT_EXEC the other way round.
        let loaded = u64::from(flags & elf::PF_R) >> 2
            | u64::from(flags & elf::PF_W)
            | u64::from(flags & elf::PF_X) << 2;
        let lo = address.wrapping_add(bias) & !(PAGE - 1);
        let hi = (address.wrapping_add(bias) + len).next_multiple_of(PAGE);
        Some((lo, hi - lo, loaded))
    })
}
