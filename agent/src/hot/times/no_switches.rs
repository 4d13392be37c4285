//! In place of [`switches`](super::switches) in programs that glibc's dynamic linker does not load: nothing says there that a thread
//! has been off the processor.

use crate::hot::times::clock;
use crate::program::agent::Agent;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::shared::BlockRef;

/// Not used.
pub(crate) static WORD: AtomicU64 = AtomicU64::new(0);

/// Does nothing.
pub(crate) fn ignore() {}

/// Does nothing.
pub(crate) fn prepare(_dynamic_linker: u64) {}

/// Does nothing.
pub(crate) fn begin(_block: BlockRef) {}

/// Notes nothing.
pub(crate) fn note(_agent: &Agent, _block: BlockRef, now: u64) -> u64 {
    now
}

/// Adds the time since `before`, a time of the clock, to the pauses of the calling thread. Returns that time.
pub(crate) fn pause(_agent: &Agent, block: BlockRef, before: u64) -> u64 {
    let took = clock::now().wrapping_sub(before);
    block.times().paused().fetch_add(took, Ordering::Relaxed);
    took
}
