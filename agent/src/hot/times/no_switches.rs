//! In place of [`switches`](super::switches) in programs that glibc's dynamic linker does not load: nothing says there that a thread
//! has been off the processor.

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
pub(crate) fn begin(_block: BlockRef, _now: u64) {}

/// Does nothing.
pub(crate) fn forget(_block: BlockRef, _now: u64) {}

/// Notes nothing, and returns so.
pub(crate) fn note(_agent: &Agent, _block: BlockRef, _now: u64) -> bool {
    false
}
