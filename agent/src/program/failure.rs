//! Handles a panic of the agent's own code: reports it in the region file and disables the hooks; the program
//! continues.
//!
//! Every path from the program into agent code that may panic goes through [`guarded`] or [`attempt`]. The panic
//! handler leaves the code that has panicked, as longjmp would, and these functions return to their caller, which
//! does what the program needs without counting. From then on [`has_panicked`] returns `true` in all threads, and no
//! such code runs again. Paths that are not guarded, among them the frequent ones, contain no code that may panic: a
//! test checks the library's machine code for that (`tests/tests/agent.rs`).
//!
//! Unfinished work is not cleaned up: the agent has no locks and no heap, so at worst a descriptor stays open or a
//! mapping stays.
#![allow(unsafe_code, reason = "a panic leaves the stack frames of the code that has panicked")]

use crate::os::memory;
use crate::os::task;
use crate::program::agent::Agent;
use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gprofinject_abi::region::{PAGE, PANIC_FILE_WORDS, State, Trouble};
use gprofinject_abi::shared::RegionRef;

/// Set by the first panic, and never reset. A thread that reads the old value counts as one that came just before.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// The address of the region header during the set-up, when there is no [`Agent`] yet, or 0 if there is none. Written
/// by the thread that sets up, and read by the same thread if it panics.
static REPORT_TO: AtomicU64 = AtomicU64::new(0);

/// Makes this region header the one in which panics are reported, until an [`Agent`] is installed.
pub(crate) fn report_to(region: RegionRef) {
    REPORT_TO.store(region.address(), Ordering::Relaxed);
}

/// Returns whether the agent has panicked, so that its hooks are disabled.
pub(crate) fn has_panicked() -> bool {
    PANICKED.load(Ordering::Relaxed)
}

/// Does the work and returns its result, or `None` if the work has panicked, or the agent had panicked before.
pub(crate) fn guarded<W: FnOnce() -> T, T>(work: W) -> Option<T> {
    if has_panicked() { None } else { attempt(work) }
}

/// Does the work and returns its result, or `None` if the work has panicked. It does the work even if the agent had
/// panicked before.
pub(crate) fn attempt<W: FnOnce() -> T, T>(work: W) -> Option<T> {
    struct Call<W, T> {
        work: Option<W>,
        result: Option<T>,
    }
    extern "C" fn run<W: FnOnce() -> T, T>(call: *mut Call<W, T>) {
        // SAFETY: `gpi_guard` passes on its argument, the address of a local variable below, which no other code uses
        // meanwhile.
        let call = unsafe { &mut *call };
        call.result = call.work.take().map(|work| work());
    }
    let mut call = Call { work: Some(work), result: None };
    let routine = run::<W, T> as extern "C" fn(*mut Call<W, T>);
    // SAFETY: the routine gets the type that it expects. If it is left by a panic, `gpi_guard` restores the registers
    // that a function must preserve, and the result stays `None`.
    unsafe { gpi_guard(routine as *const () as u64, (&raw mut call).cast()) };
    call.result
}

// gpi_guard(routine, argument) calls the routine. It leaves a mark on the stack for the panic handler: a word with the
// address of the next word, which holds the address of `gpi_guard_out`. The mark is erased when it is no longer
// needed, so that it is not found in memory that a later frame has not written.
global_asm!(
    ".text",
    ".globl gpi_guard, gpi_guard_out, gpi_leave",
    ".hidden gpi_guard, gpi_guard_out, gpi_leave",
    ".p2align 4",
    ".type gpi_guard, @function",
    "gpi_guard:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbp, 0",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "push rbx",
    ".cfi_offset rbx, -24",
    "push r12",
    ".cfi_offset r12, -32",
    "push r13",
    ".cfi_offset r13, -40",
    "push r14",
    ".cfi_offset r14, -48",
    "push r15",
    ".cfi_offset r15, -56",
    "lea rax, [rip+gpi_guard_out]",
    "sub rsp, 8", // the stack is aligned to 16 where the routine is called
    "push rax",
    "push rsp",
    "mov rax, rdi",
    "mov rdi, rsi",
    "call rax",
    "gpi_guard_out:", // here the panic handler comes, too: rsp = the mark. The injector knows this instruction (GUARD_OUT)
    "mov qword ptr [rsp], 0",
    "lea rbp, [rsp+64]", // the handler has not restored it
    "lea rsp, [rsp+24]",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size gpi_guard, . - gpi_guard",
    //
    // gpi_leave(mark): continues after the call of the `gpi_guard` that has left this mark.
    ".p2align 4",
    ".type gpi_leave, @function",
    "gpi_leave:",
    "mov rsp, rdi",
    "jmp gpi_guard_out",
    ".size gpi_leave, . - gpi_leave",
);

unsafe extern "C" {
    fn gpi_guard(routine: u64, argument: *mut u8);
    fn gpi_guard_out();
    fn gpi_leave(mark: u64) -> !;
}

/// The panic handler. `place` is the name of a source file, and a line.
pub(crate) fn panicked(place: Option<(&[u8], u32)>) -> ! {
    let agent = Agent::get();
    // SAFETY: `report_to` has stored the address of a `RegionRef`, whose header stays mapped.
    let set_up = unsafe { RegionRef::at(REPORT_TO.load(Ordering::Relaxed)) };
    if !PANICKED.swap(true, Ordering::Relaxed) {
        report(if agent.is_set_up { agent.region } else { set_up.unwrap_or(agent.region) }, place);
    }
    match mark() {
        // SAFETY: the mark is that of the innermost `gpi_guard`, whose frame is still there, since this code runs
        // below it. The frames in between are Rust's, which have nothing to clean up.
        Some(mark) => unsafe { gpi_leave(mark) },
        None => task::sleep_for_ever(),
    }
}

/// Reports the place of the panic in the region file.
fn report(region: RegionRef, place: Option<(&[u8], u32)>) {
    if let Some((name, line)) = place {
        let len = name.len().min(8 * PANIC_FILE_WORDS);
        let mut bytes = name.iter().skip(name.len() - len);
        for word in region.panic_file() {
            let mut value = 0;
            for (shift, &byte) in (0..u64::BITS).step_by(8).zip(bytes.by_ref().take(8)) {
                value |= u64::from(byte) << shift;
            }
            word.store(value, Ordering::Relaxed);
        }
        region.errno().store(line as i32, Ordering::Relaxed);
    }
    region.trouble().store(Trouble::Panic.code().0, Ordering::Release);
    // If hooks are in place, they remain, and the counts remain valid.
    let (setting_up, refused) = (State::SettingUp.code().0, State::Refused.code().0);
    let _ = region.state().compare_exchange(setting_up, refused, Ordering::Release, Ordering::Relaxed);
}

/// Returns the mark of the innermost `gpi_guard` on the stack, or `None` if there is none as far up as guarded code
/// may be. That cannot happen, because all code that may panic is guarded.
fn mark() -> Option<u64> {
    /// Several times the number of bytes of stack that guarded code uses at most.
    const MOST: u64 = 256 << 10;
    let out = gpi_guard_out as *const () as u64;
    let process = task::getpid();
    let start = (&raw const out as u64).next_multiple_of(8);
    let mut at = start;
    while at < start + MOST {
        // Stacks end at a page's end.
        if at.is_multiple_of(PAGE) && memory::is_unreadable(process, at) {
            return None;
        }
        // SAFETY: the page is part of the stack, or follows it, and is readable. The access is volatile because other
        // frames own the word and may be writing it.
        let word = |at: u64| unsafe { (at as *const u64).read_volatile() };
        if word(at) == at + 8 && !(at + 8).is_multiple_of(PAGE) && word(at + 8) == out {
            return Some(at);
        }
        at += 8;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_with_its_result() {
        let text = String::from("result");
        assert_eq!(guarded(|| text.len()), Some(6));
        assert_eq!(guarded(|| guarded(|| 7)), Some(Some(7)));
    }

    #[test]
    fn the_innermost_guard_is_left() {
        let mut reached = false;
        let inner = guarded(|| {
            let inner = guarded(|| -> u32 {
                let mark = mark().expect("a mark");
                // SAFETY: the innermost guard is the one around this closure, which owns nothing.
                unsafe { gpi_leave(mark) }
            });
            reached = true;
            inner
        });
        assert_eq!((inner, reached), (Some(None), true));
        assert_eq!(mark(), None);
    }
}
