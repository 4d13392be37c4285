//! The thread words of a standalone program: the base of gs leads to the thread's [`Record`], which begins with them.
#![allow(unsafe_code, reason = "the thread pointer and the linker's symbols are read by instructions")]

use core::arch::{asm, global_asm};
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gprofinject_abi::plan::ThreadWords;
use gprofinject_abi::shared::WordsRef;

use crate::os::record::Record;

global_asm!(".hidden __ehdr_start");

/// Assembly: an instruction with one of the calling thread's words as its memory operand. The register in the operand
/// contains what [`words_offset`] has loaded.
macro_rules! thread_word {
    ($before:literal, $operand:literal $(, $behind:literal)?) => {
        concat!($before, "gs:", $operand $(, $behind)?)
    };
}

/// Assembly: loads the offset by which [`thread_word`] reaches the calling thread's words. The flags stay as they are.
macro_rules! words_offset {
    ($register:literal) => {
        concat!("mov ", $register, ", 0")
    };
}

pub(crate) use {thread_word, words_offset};

const _: () = assert!(offset_of!(Record, words) == 0);

/// The offset of the word of the thread's stack for slow paths ([`crate::hot::small_stacks`]) from the others.
pub(crate) const SLOW_STACK: usize = offset_of!(Record, slow_stack);

/// Returns the offset of the words from the base of gs.
pub(crate) fn offset() -> i64 {
    0
}

/// Whether the agent was put into a process that was already running. Stored once, before the first hook is in place.
static IS_ATTACHED: AtomicBool = AtomicBool::new(false);

/// Stores that the agent was put into a process that was already running.
pub(crate) fn set_attached() {
    IS_ATTACHED.store(true, Ordering::Relaxed);
}

/// Returns whether the agent was put into a process that was already running.
pub(crate) fn is_attached() -> bool {
    IS_ATTACHED.load(Ordering::Relaxed)
}

/// Returns the calling thread's words.
pub(crate) fn get() -> WordsRef {
    let at = thread_pointer() as *mut ThreadWords;
    // SAFETY: the base of gs leads to the thread's record, which begins with the words and is never unmapped. Apart
    // from thunks, only `WordsRef` accesses the words.
    unsafe { WordsRef::new(core::ptr::NonNull::new_unchecked(at)) }
}

/// Returns the calling thread's word for system call user dispatch, which is 0 in a new thread: see [`crate::os::dispatch`].
pub(crate) fn dispatch() -> Option<&'static AtomicU64> {
    let record = thread_pointer() as *const Record;
    // SAFETY: the record is the calling thread's and is never unmapped.
    Some(unsafe { &(*record).dispatch })
}

/// Returns the address of the thread's record, which no other thread has.
pub(crate) fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: a record contains its own address.
    unsafe {
        asm!("mov {}, gs:[{own}]", out(reg) pointer, own = const offset_of!(Record, own), options(nostack, pure, readonly));
    }
    pointer
}

/// Returns an address at which the calling thread's stack ends, if it is not the main thread, or 0 if it is not known.
pub(crate) fn stack_end() -> u64 {
    stack().1
}

/// Returns nothing: a new thread gets its words from [`records`].
pub(crate) fn image() -> Option<WordsRef> {
    None
}

/// Returns the address of the word of the calling thread's stack for slow paths.
pub(crate) fn slow_stack() -> *mut u64 {
    (thread_pointer() + SLOW_STACK as u64) as *mut u64
}

/// Returns the extent of the calling thread's own stack, or zeros if it is not known.
pub(crate) fn stack() -> (u64, u64) {
    let record = thread_pointer() as *const Record;
    // SAFETY: the record is the calling thread's, and its stack was stored before the thread began.
    let [lo, hi] = unsafe { (*record).stack };
    (lo, hi)
}
