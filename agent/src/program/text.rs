//! The text of the program and of libraries: patched in the set-up, and restored in children that are not followed. Code of the arena that
//! leads to a patch is changed with it (see [`gprofinject_abi::plan::CallJump`]).
#![allow(unsafe_code, reason = "the program's text is read and overwritten")]

use crate::os::files;
use crate::os::kernel::EINVAL;
use crate::os::memory;
use crate::os::task;
use crate::os::words;
use crate::program::agent::Agent;
use crate::program::libraries;
use crate::program::module::Module;
use crate::program::switches;
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicU32, Ordering};
use gprofinject_abi::plan::{Maker, Patch, Stay, TextRange};
use gprofinject_abi::region::PAGE;
use linux_raw_sys::elf;

/// Writes the patches that the agent makes. During that time the pages are writable and not executable. The caller
/// has checked the original bytes.
pub(crate) fn patch(module: &Module) -> Result<(), i32> {
    rewrite(module, true, |patch| {
        if patch.by == Maker::Agent.code() { with_hooks(module, patch) } else { &patch.original }
    })
}

/// Maps patched text in place of the module's, and writes what has to be changed in the arena with it. `fd` is the descriptor of the
/// file that has the text, and whose other pages are like those of the module's file. The caller has checked that the module's text
/// is that of its file, and no other thread runs.
pub(crate) fn replace(module: &Module, ranges: &[TextRange], fd: i32) -> Result<(), i32> {
    const ACCESS: u64 = memory::PROT_READ | memory::PROT_EXEC;
    const FLAGS: u64 = memory::MAP_PRIVATE | memory::MAP_FIXED;
    for range in ranges {
        let at = range.address.wrapping_add(module.load_bias);
        let is_its_text = executable_segments(module).any(|(lo, len, loaded)| {
            loaded == ACCESS && at >= lo && at.wrapping_add(range.len) <= lo.wrapping_add(len)
        });
        if !is_its_text {
            return Err(EINVAL);
        }
    }
    if !module.call_jumps.is_empty() {
        protect_arena(module, memory::PROT_READ | memory::PROT_WRITE)?;
        write_call_jumps(module, true);
        protect_arena(module, ACCESS)?;
    }
    for range in ranges {
        let at = range.address.wrapping_add(module.load_bias);
        // SAFETY: the module's text is there, as was checked above, and what replaces it is the same but for the patches.
        unsafe { memory::mmap(at, range.len, ACCESS, FLAGS, fd, range.offset) }?;
    }
    Ok(())
}

/// Writes all patches, including those of Frida's gum, while all other threads are stopped.
pub(crate) fn patch_again(module: &Module) -> Result<(), i32> {
    rewrite(module, true, |patch| with_hooks(module, patch))
}

/// Changes the code as the functions of a module are switched ([`switches`]): that in the arena, and if `in_text` the text,
/// which then has the other patches. All other threads are stopped, or do not know of the arena yet.
pub(crate) fn switch(module: &Module, in_text: bool) -> Result<(), i32> {
    let access = memory::PROT_READ | memory::PROT_WRITE;
    protect_arena(module, access)?;
    // SAFETY: the arena is writable, and no thread is at the start of a thunk whose function is switched.
    unsafe { switches::write_bypasses(module) };
    let written = if in_text { rewrite(module, true, |patch| with_hooks(module, patch)) } else { Ok(()) };
    protect_arena(module, memory::PROT_READ | memory::PROT_EXEC).and(written)
}

/// Sets the protection of a module's thunks.
fn protect_arena(module: &Module, protection: u64) -> Result<(), i32> {
    let len = module.copies_hi.wrapping_sub(module.arena_lo);
    // SAFETY: this is the agent's arena. Where the right to execute goes away, no other thread runs.
    unsafe { memory::mprotect(module.arena_lo, len, protection) }.map(drop)
}

/// Restores the original bytes of all patches but those that stay, while all other threads are stopped.
pub(crate) fn unpatch(module: &Module) -> Result<(), i32> {
    rewrite(module, false, without_hooks)
}

/// Returns whether a module has patches that stay while hooks are paused.
pub(crate) fn has_rest(module: &Module) -> bool {
    module.patches.iter().any(|patch| patch.stays != Stay::Not.code())
}

/// Restores the original bytes of those patches that stay while hooks are paused, while all other threads are stopped. No
/// hooked frame will return any more.
pub(crate) fn unpatch_rest(module: &Module) -> Result<(), i32> {
    if has_rest(module) { rewrite(module, false, |patch| &patch.original) } else { Ok(()) }
}

/// Writes those patches of a library that stay while hooks are paused, in which it is loaded. Its other bytes are the original
/// ones. Other threads may run, as when hooks are written.
pub(crate) fn patch_rest(module: &Module) -> Result<(), i32> {
    if has_rest(module) { rewrite(module, false, without_hooks) } else { Ok(()) }
}

/// Returns whether the text of a module is as it is while hooks are paused. All the patches' addresses must be mapped.
pub(crate) fn is_paused(module: &Module) -> bool {
    has(module, without_hooks)
}

/// Returns the bytes of a patch while hooks are in place.
fn with_hooks<'p>(module: &Module, patch: &'p Patch) -> &'p [u8] {
    if switches::has_original(module, patch) { &patch.original } else { &patch.replacement }
}

/// Returns the bytes of a patch while hooks are paused.
fn without_hooks(patch: &Patch) -> &[u8] {
    if patch.stays == Stay::Not.code() { &patch.original } else { &patch.replacement }
}

/// Compares the text in memory with the text for which patches were made. Returns the address of the first patch, relative
/// to `bias`, whose original bytes are not there. All the patches' addresses must be mapped.
pub(crate) fn first_difference(patches: &[Patch], bias: u64) -> Option<u64> {
    let differs = |patch: &&Patch| {
        let len = patch.len as usize;
        // SAFETY: the caller has made sure that the patches are those of the module that is mapped there, so the address
        // lies in its text.
        let text = unsafe { slice::from_raw_parts(patch.address.wrapping_add(bias) as *const u8, len) };
        patch.original.get(..len) != Some(text)
    };
    patches.iter().find(differs).map(|patch| patch.address)
}

/// Returns whether all patches of a module are in its text. All the patches' addresses must be mapped.
pub(crate) fn is_patched(module: &Module) -> bool {
    has(module, |patch| with_hooks(module, patch))
}

/// Returns whether all patches of a module have these bytes in its text. All the patches' addresses must be mapped.
fn has<'m>(module: &Module, bytes: impl Fn(&'m Patch) -> &'m [u8]) -> bool {
    module.patches.iter().all(|patch| {
        let len = patch.len as usize;
        let at = patch.address.wrapping_add(module.bias) as *const u8;
        // SAFETY: the caller has made sure that the addresses are mapped.
        let text = unsafe { slice::from_raw_parts(at, len) };
        bytes(patch).get(..len) == Some(text)
    })
}

fn rewrite<'m>(module: &Module, patched: bool, bytes: impl Fn(&'m Patch) -> &'m [u8]) -> Result<(), i32> {
    let writable = memory::PROT_READ | memory::PROT_WRITE;
    if let Err(errno) = protect(module, |_| writable) {
        // This restores the protection of the segments that were changed; the others have it already.
        let _ = protect(module, |flags| flags);
        return Err(errno);
    }
    write(module, patched, bytes);
    protect(module, |flags| flags)
}

/// The number of calls of a slow path on which the restoration is still tried.
static TRIES: AtomicU32 = AtomicU32::new(0);
const MOST_TRIES: u32 = 4;

/// On the slow path of a forked child that counts nowhere: restores the text, so that the child's calls cost no more
/// than without the agent. Frames that are on the stack return through their thunks, which remain.
pub(crate) fn restore(agent: &Agent) {
    if TRIES.load(Ordering::Relaxed) >= MOST_TRIES {
        return;
    }
    TRIES.fetch_add(1, Ordering::Relaxed);
    // A process that shares this memory may be running thunks, or the code that is overwritten. A child of vfork has
    // another process number.
    if task::getpid() != agent.pid || !files::has_one_thread() || may_be_in_handler(agent) {
        return;
    }
    TRIES.store(MOST_TRIES, Ordering::Relaxed);
    let Ok(blocked) = task::block_signals() else { return };
    let restore = |module: &Module| {
        // The pages stay executable, because a process that shares the memory without being a thread continues to run.
        if protect(module, |flags| flags | memory::PROT_WRITE).is_ok() {
            write(module, false, without_hooks);
        }
        let _ = protect(module, |flags| flags);
    };
    restore(&agent.program);
    let all = (0..libraries::used()).filter_map(libraries::get);
    // The child may have unloaded a library without the agent's notice.
    let is_mapped = |library: &libraries::Library| {
        let (lo, hi) = library.extent();
        [library.start, lo, hi - 1].into_iter().all(|at| !memory::is_unreadable(agent.pid, at))
    };
    let are_there = all.filter(|library| library.is_loaded() && is_mapped(library));
    are_there.filter(|library| is_patched(&library.module)).for_each(|library| restore(&library.module));
    let _ = task::set_blocked_signals(blocked);
}

/// Returns whether a signal handler may be running that has interrupted the instructions of a patch. Only the main
/// thread's own stack is known to be mapped up to its end.
fn may_be_in_handler(agent: &Agent) -> bool {
    /// The kernel lets no stack grow closer than this to the mapping below it.
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

/// Writes the bytes of all patches. `patched` is whether these are the replacements; it selects the displacements of
/// the call jumps.
fn write<'m>(module: &Module, patched: bool, bytes: impl Fn(&'m Patch) -> &'m [u8]) {
    write_call_jumps(module, patched);
    for patch in module.patches {
        // SAFETY: the set-up has compared the text there with the plan's, and `protect` has made it writable. The
        // callers ensure that no thread runs these instructions. `get` checks that the plan's `len` is no longer than
        // its arrays.
        unsafe {
            let to = patch.address.wrapping_add(module.bias) as *mut u8;
            let from = bytes(patch).get(..patch.len as usize).unwrap_or_default();
            ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
        }
    }
}

/// Writes the displacements of the call jumps. The arena is writable.
fn write_call_jumps(module: &Module, patched: bool) {
    for jump in module.call_jumps {
        let is_there = patched && !switches::is_without_call(module, jump);
        let displacement = if is_there { jump.displacement } else { 0 };
        // SAFETY: the set-up has checked that the displacement lies inside the arena, which the caller has made writable.
        unsafe { ((module.arena_lo + u64::from(jump.at)) as *mut u32).write_unaligned(displacement) };
    }
}

/// Sets the protection of the module's executable segments, computed from the one with which they were loaded, and
/// the arena's if it changes with them.
fn protect(module: &Module, to: impl Fn(u64) -> u64) -> Result<(), i32> {
    let len = module.copies_hi.wrapping_sub(module.arena_lo);
    let arena = (module.arena_lo, len, memory::PROT_READ | memory::PROT_EXEC);
    let arena = Some(arena).filter(|_| !module.call_jumps.is_empty());
    for (lo, len, loaded) in executable_segments(module).chain(arena) {
        // SAFETY: these are the module's text and the agent's arena. Where `to` takes the right to execute away, the
        // caller has made sure that no other thread runs.
        unsafe { memory::mprotect(lo, len, to(loaded)) }?;
    }
    Ok(())
}

/// Returns whether the program may write to its own text. Frida's gum would make the text read-only.
pub(crate) fn is_writable(module: &Module) -> bool {
    executable_segments(module).any(|(_, _, loaded)| loaded & memory::PROT_WRITE != 0)
}

/// Returns address, size in bytes and protection of the module's executable pages, as they were loaded.
fn executable_segments(module: &Module) -> impl Iterator<Item = (u64, u64, u64)> {
    let (bias, (at, size, count)) = (module.load_bias, module.headers);
    (0..count).filter_map(move |i| {
        // struct Elf64_Phdr: type, flags, offset, vaddr, paddr, filesz, memsz, align.
        let header = (at + i * size) as *const u32;
        // SAFETY: the auxiliary vector, which the kernel or the injector has made, gives the address of the program
        // headers; for a library, the set-up has found them by its ELF header.
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
