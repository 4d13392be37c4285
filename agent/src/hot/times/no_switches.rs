//! In place of [`switches`](super::switches) in programs that glibc's dynamic linker does not load: nothing says there that a thread
//! has been off the processor.

use crate::hot::times::clock;
use crate::program::agent::Agent;
use core::sync::atomic::AtomicU64;
use gprofinject_abi::shared::BlockRef;

/// Not used.
pub(crate) static WORD: AtomicU64 = AtomicU64::new(0);

/// Does nothing.
pub(crate) fn ignore() {}

/// Does nothing.
pub(crate) fn prepare(_dynamic_linker: u64) {}

/// Does nothing.
pub(crate) fn begin(_block: BlockRef) {}

/// Nothing is known.
pub(crate) fn has_switched() -> bool {
    false
}

/// Notes nothing.
pub(crate) fn note(_agent: &Agent, _block: BlockRef, now: u64) -> u64 {
    now
}

/// Adds what has passed since `since`, a time without pauses, to the pauses of the calling thread. Returns how much that is.
pub(crate) fn pause(_agent: &Agent, block: BlockRef, since: u64) -> u64 {
    clock::pause(block.times(), since, clock::now())
}
