//! Looks for frames that have been copied away, to memory that is no stack. Their labels lead to thunks, and will do so
//! when they are copied back, which nobody sees.

use std::collections::HashSet;
use std::io;
use std::ops::Range;

use gprofinject_abi::plan::{Cell, WINDOW};

use crate::os::proc::{self, Mapping};
use crate::target::agent::frames::{Frames, Pages, runs};
use crate::target::threads::deadline;

/// The length in bytes of the memory that is searched at most, while the threads of the process are stopped.
const MOST: u64 = 1 << 30;

/// Returns whether a process contains such frames, which have these labels, or has too much memory to find out. `ours` are the agent's
/// mappings. All return addresses on stacks have been put back. Bytes that look like a label but are no frame's, as on a stack
/// where there were frames when the process was profiled before, are taken for one only if a frame with that label is missing.
///
/// # Errors
/// The process's memory cannot be examined.
pub(crate) fn are_in(
    pid: i32,
    frames: &Frames,
    labels: &HashSet<u64>,
    ours: &[Range<u64>],
) -> io::Result<bool> {
    /// The page map is read in pieces for this many bytes.
    const PIECE: u64 = 1 << 30;
    if labels.is_empty() {
        return Ok(false);
    }
    let pages = Pages::of(pid)?;
    let mut left = MOST;
    let mappings = proc::mappings(pid)?;
    let searched = |&n: &usize| mappings[n].writable && !is_stack(&mappings, n);
    for mapping in (0..mappings.len()).filter(searched).map(|n| &mappings[n]) {
        for from in (mapping.lo..mapping.hi).step_by(PIECE as usize) {
            if deadline::has_passed() {
                return Ok(true);
            }
            let mut there = pages.present(from..mapping.hi.min(from + PIECE))?;
            there.retain(|page| !ours.iter().any(|own| own.contains(page)));
            for run in runs(&there) {
                let Some(rest) = left.checked_sub(run.end - run.start) else { return Ok(true) };
                left = rest;
                if has_label(frames, labels, &run) {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

/// Returns whether a mapping seems to be the stack of a thread or of a coroutine, also of one that has ended: below it, there is a page
/// that nobody may access. What is not in use of it has labels of frames that are gone.
fn is_stack(mappings: &[Mapping], n: usize) -> bool {
    let mapping = &mappings[n];
    let is_guard = |below: &Mapping| {
        below.hi == mapping.lo
            && !below.writable
            && !below.executable
            && below.inode == 0
            && below.path.is_empty()
    };
    mapping.path == "[stack]" || n.checked_sub(1).is_some_and(|below| is_guard(&mappings[below]))
}

/// Returns whether one of the labels is in a piece of memory, where a frame has been copied to.
fn has_label(frames: &Frames, labels: &HashSet<u64>, memory: &Range<u64>) -> bool {
    // A device's memory cannot be read.
    let words: Vec<u64> =
        frames.memory.records(memory.start, (memory.end - memory.start) as usize / 8).unwrap_or_default();
    let places = (memory.start..).step_by(8).zip(words);
    places
        .filter(|&(_, word)| frames.arenas.contains(word))
        .any(|(at, word)| labels.contains(&word) && !is_remains(frames, at))
}

/// Returns whether a word is what a frame that is gone has left on its stack: its return slot, or what the agent has written below
/// that while it worked for the frame. Then the cell of a frame a little above is not empty. The rule is narrow, because a copy that is
/// taken for remains ends the process, and remains that are taken for a copy cost some memory: copies can be beside the stack in the
/// same heap.
fn is_remains(frames: &Frames, at: u64) -> bool {
    /// The agent has the labels that it works with less far below a CFA (`agent/src/hot/gate.rs`).
    const NEAR: u64 = 8 << 10;
    let within = |from: u64, to: u64| {
        let count = ((to - from) / 8) as usize;
        let cells = frames.cell(from).and_then(|cell| frames.memory.records::<Cell>(cell, count).ok());
        cells.is_some_and(|cells| cells.iter().any(|cell| cell.return_address != 0))
    };
    // The address after a return slot is its frame's CFA.
    let (from, to) = (at + 8, at.saturating_add(NEAR));
    let border = to & !(WINDOW - 1);
    if from < border && border < to { within(from, border) || within(border, to) } else { within(from, to) }
}
