//! The program's text: patched at the start, and made what it was in children that are not followed. What of the arena
//! leads to a patch is changed with it (see [`CallJump`]).
#![allow(unsafe_code)]

use crate::agent::Agent;
use crate::early::Start;
use crate::setup::AT_PHDR;
use crate::sys;
use crate::words;
use core::cell::UnsafeCell;
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicU32, Ordering};
use gprofinject_abi::plan::{CallJump, Maker, Patch};
use gprofinject_abi::region::PAGE;

const AT_PHENT: u64 = 4;
const AT_PHNUM: u64 = 5;

/// Kept apart from the auxiliary vector, which the program may overwrite.
struct Text {
    patches: *const Patch,
    patches_count: usize,
    call_jumps: *const CallJump,
    call_jumps_count: usize,
    /// Address and bytes of the arena.
    arena: (u64, u64),
    bias: u64,
    /// Program headers: address, size of one, number.
    headers: (u64, u64, u64),
}

struct Global(UnsafeCell<Text>);
// SAFETY: written once, by `prepare`, before any code of the program runs.
unsafe impl Sync for Global {}
static TEXT: Global = Global(UnsafeCell::new(Text {
    patches: ptr::null(),
    patches_count: 0,
    call_jumps: ptr::null(),
    call_jumps_count: 0,
    arena: (0, 0),
    bias: 0,
    headers: (0, 0, 0),
}));

fn text() -> &'static Text {
    // SAFETY: see Global.
    unsafe { &*TEXT.0.get() }
}

impl Text {
    fn patches(&self) -> &'static [Patch] {
        if self.patches.is_null() {
            return &[];
        }
        // SAFETY: a table of the plan file, which is mapped for ever.
        unsafe { slice::from_raw_parts(self.patches, self.patches_count) }
    }

    fn call_jumps(&self) -> &'static [CallJump] {
        if self.call_jumps.is_null() {
            return &[];
        }
        // SAFETY: as above.
        unsafe { slice::from_raw_parts(self.call_jumps, self.call_jumps_count) }
    }
}

/// What there will be to do. `arena`: its address and bytes.
pub(crate) fn prepare(
    start: &Start,
    patches: &'static [Patch],
    call_jumps: &'static [CallJump],
    arena: (u64, u64),
    bias: u64,
) {
    let headers = (start.auxiliary(AT_PHDR), start.auxiliary(AT_PHENT), start.auxiliary(AT_PHNUM));
    // SAFETY: one thread, and no code of the program has run.
    unsafe {
        *TEXT.0.get() = Text {
            patches: patches.as_ptr(),
            patches_count: patches.len(),
            call_jumps: call_jumps.as_ptr(),
            call_jumps_count: call_jumps.len(),
            arena,
            bias,
            headers,
        };
    }
}

/// Writes the patches that are the agent's. The pages are writable only for that long, and not executable
/// meanwhile. The caller has found the original bytes there.
pub(crate) fn patch() -> Result<(), i32> {
    rewrite(true, |patch| if patch.by == Maker::Agent.code() { &patch.replacement } else { &patch.original })
}

/// Writes all patches, once Frida's gum has made its own, while all other threads stand still.
pub(crate) fn patch_again() -> Result<(), i32> {
    rewrite(true, |patch| &patch.replacement)
}

/// Writes the original bytes, while all other threads stand still.
pub(crate) fn unpatch() -> Result<(), i32> {
    rewrite(false, |patch| &patch.original)
}

/// For Frida's gum: all patches, and the load bias.
pub(crate) fn patches() -> (&'static [Patch], u64) {
    (text().patches(), text().bias)
}

fn rewrite(patched: bool, bytes: impl Fn(&Patch) -> &[u8]) -> Result<(), i32> {
    let writable = sys::PROT_READ | sys::PROT_WRITE;
    if let Err(errno) = protect(|_| writable) {
        // What was changed is changed back; what was not cannot hurt.
        let _ = protect(|flags| flags);
        return Err(errno);
    }
    write(patched, bytes);
    protect(|flags| flags)
}

/// Slow paths on which it is tried.
static TRIES: AtomicU32 = AtomicU32::new(0);
const MOST_TRIES: u32 = 4;

/// On the slow path of a forked child that counts for nobody: makes the text what it was, so that the child
/// pays no more. Frames that are on the stack return through their thunks, which stay.
pub(crate) fn restore(agent: &Agent) {
    if TRIES.load(Ordering::Relaxed) >= MOST_TRIES {
        return;
    }
    TRIES.fetch_add(1, Ordering::Relaxed);
    // Who shares this memory may be running our thunks, or what we write over. A child of vfork has another
    // number.
    if sys::getpid() != agent.pid || !sys::has_one_thread() || may_be_in_handler(agent) {
        return;
    }
    TRIES.store(MOST_TRIES, Ordering::Relaxed);
    let Ok(blocked) = sys::block_signals() else { return };
    // Executable all the while: somebody who shares the memory without being a thread goes on running.
    if protect(|flags| flags | sys::PROT_WRITE).is_ok() {
        write(false, |patch| &patch.original);
    }
    let _ = protect(|flags| flags);
    let _ = sys::set_blocked_signals(blocked);
}

/// Whether a signal handler may be running, which may have interrupted the instructions of a patch. Only the
/// main thread's own stack is known to be there up to its end.
fn may_be_in_handler(agent: &Agent) -> bool {
    /// The kernel lets no stack grow nearer than this to what is below it.
    const MOST: u64 = 64 << 20;
    let mut at = &raw const agent as u64 & !7;
    if words::thread_pointer() != agent.main_thread || at > agent.stack_end || agent.stack_end - at > MOST {
        return true;
    }
    while at < agent.stack_end {
        // SAFETY: on the main thread's stack, between its top and its oldest end.
        if agent.is_restorer(unsafe { *(at as *const u64) }) {
            return true;
        }
        at += 8;
    }
    false
}

/// `patched`: what is written are the replacements.
fn write(patched: bool, bytes: impl Fn(&Patch) -> &[u8]) {
    let text = text();
    for jump in text.call_jumps() {
        let displacement = if patched { jump.displacement } else { 0 };
        // SAFETY: inside the arena, as the set-up has seen, which is writable.
        unsafe { ((text.arena.0 + u64::from(jump.at)) as *mut u32).write_unaligned(displacement) };
    }
    for patch in text.patches() {
        // SAFETY: the set-up has compared the text there with the plan's; the pages are writable.
        unsafe {
            let to = patch.address.wrapping_add(text.bias) as *mut u8;
            ptr::copy_nonoverlapping(bytes(patch).as_ptr(), to, patch.len as usize);
        }
    }
}

/// Sets the protection of the program's executable segments from the one they were loaded with, and the arena's if it
/// changes with them.
fn protect(to: impl Fn(u64) -> u64) -> Result<(), i32> {
    let text = text();
    let arena = (text.arena.0, text.arena.1, sys::PROT_READ | sys::PROT_EXEC);
    let arena = Some(arena).filter(|_| text.call_jumps_count != 0);
    for (lo, len, loaded) in executable_segments().chain(arena) {
        // SAFETY: the program's own text, and thunks. While they are not executable, no thread runs them.
        unsafe { sys::mprotect(lo, len, to(loaded)) }?;
    }
    Ok(())
}

/// Whether the program may write into its own text. Frida's gum would take that from it.
pub(crate) fn is_writable() -> bool {
    executable_segments().any(|(_, _, loaded)| loaded & sys::PROT_WRITE != 0)
}

/// Pages and protection as the program was loaded.
fn executable_segments() -> impl Iterator<Item = (u64, u64, u64)> {
    const PT_LOAD: u32 = 1;
    let Text { bias, headers: (at, size, count), .. } = *text();
    (0..count).filter_map(move |i| {
        // struct Elf64_Phdr: type, flags, offset, vaddr, paddr, filesz, memsz, align.
        let header = (at + i * size) as *const u32;
        // SAFETY: the kernel says that the program headers are there.
        let (kind, flags, address, len) = unsafe {
            let words = header.cast::<u64>();
            (*header, *header.add(1), *words.add(2), *words.add(5))
        };
        if kind != PT_LOAD || flags & 1 == 0 {
            return None;
        }
        // PF_X, PF_W, PF_R are 1, 2, 4; PROT_READ, PROT_WRITE, PROT_EXEC the other way round.
        let loaded = u64::from(flags & 4) >> 2 | u64::from(flags & 2) | u64::from(flags & 1) << 2;
        let lo = address.wrapping_add(bias) & !(PAGE - 1);
        let hi = (address.wrapping_add(bias) + len).next_multiple_of(PAGE);
        Some((lo, hi - lo, loaded))
    })
}
