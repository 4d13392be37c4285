//! Threads of Go programs, whose stacks are pieces of Go's heap: above the stack that a thread uses are those of others.

use std::ops::Range;

use gprofinject_image::Image;
use libc::user_regs_struct;
use serde::{Deserialize, Serialize};

use crate::target::threads::memory::Memory;

/// What has to be known of a Go program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Go {
    /// The addresses of `runtime.asyncPreempt`, from which a goroutine may be about to return into a patch or to the copy of an
    /// instruction; empty if it is not known.
    pub(super) preemption: Range<u64>,
}

impl Go {
    /// Returns what has to be known of the program, if it is one of Go.
    pub(super) fn of(image: Option<&Image>, bias: u64) -> Option<Go> {
        let image = image.filter(|image| image.facts.go)?;
        let Range { start, end } = gprofinject_plan::preemption(image).unwrap_or_default();
        Some(Go { preemption: start.wrapping_add(bias)..end.wrapping_add(bias) })
    }
}

/// Returns where the stack ends on which a thread of a Go program runs, or `None` if it is no thread of Go's, so that what it
/// uses is a mapping of its own.
///
/// The word before the thread control block leads to the goroutine, or to what stands for one while the scheduler or a signal
/// handler runs. It begins with the bounds of the stack. A handler begins before that word is changed.
pub(super) fn end_of_stack(memory: &Memory, registers: &user_regs_struct) -> Option<u64> {
    /// Signal handlers have 32 KiB.
    const OF_SIGNALS: u64 = 64 << 10;
    let goroutine = memory.word(registers.fs_base.wrapping_sub(8)).ok().filter(|&at| at != 0)?;
    let [lo, hi]: [u64; 2] = memory.record(goroutine).ok()?;
    let is_there = (lo..hi).contains(&registers.rsp);
    Some(if is_there { hi } else { registers.rsp.saturating_add(OF_SIGNALS) })
}
