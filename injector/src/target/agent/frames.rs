//! Restores return addresses that hooks have replaced. Every hooked frame on a stack, of a thread or of a
//! coroutine, has a cell in the shadow of its stack and an exit label in its return slot.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use gprofinject_abi::plan::{
    ASIDE, Cell, FREE, INTERNED, INTERNED_LABELS, Interned, LABEL_LEN, LABELS_AT, SHADOWS, STATE, WINDOW,
};
use gprofinject_abi::region::PAGE;

use crate::os::proc;
use crate::target::agent::arenas::Arenas;
use crate::target::threads::deadline;
use crate::target::threads::memory::Memory;

const CELL: u64 = size_of::<Cell>() as u64;

/// The page map of a process (/proc/PID/pagemap).
struct Pages(File);

impl Pages {
    fn of(pid: i32) -> io::Result<Pages> {
        File::open(format!("/proc/{}/pagemap", proc::visible_thread(pid))).map(Pages)
    }

    /// Returns the addresses of the pages in a range that have been touched.
    ///
    /// # Errors
    /// The page map cannot be read.
    fn present(&self, range: Range<u64>) -> io::Result<Vec<u64>> {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        let mut bytes = vec![0; ((range.end - range.start) / PAGE * 8) as usize];
        self.0.read_exact_at(&mut bytes, range.start / PAGE * 8)?;
        let entries = bytes.chunks_exact(8).map(|entry| entry.try_into().map_or(0, u64::from_le_bytes));
        let there = entries.zip((range.start..).step_by(PAGE as usize));
        Ok(there.filter(|(entry, _)| entry & (PRESENT | SWAPPED) != 0).map(|(_, address)| address).collect())
    }
}

/// Returns what a return slot contained before a hook replaced it with `label`, if one did. The frame's CFA is the address
/// after the slot, and `shadows` is the address of the agent's table of shadow stacks.
pub(crate) fn replaced(memory: &Memory, shadows: u64, arenas: &Arenas, cfa: u64, label: u64) -> Option<u64> {
    let shadow = memory.word(shadows + cfa / WINDOW * 8).ok().filter(|shadow| *shadow != 0)?;
    let at = shadow + (cfa % WINDOW) / 8 * CELL;
    let cell: Cell = memory.record(at).ok()?;
    return_address(memory, shadows, arenas, &Frame { cell, at, label })
}

/// A frame as its cell and its return slot describe it.
struct Frame {
    cell: Cell,
    /// The address of the cell.
    at: u64,
    /// What the return slot contains: a word in an arena.
    label: u64,
}

/// Returns the return address of a frame, if it is alive: the one for which its label stands or, if it is an exit label, the
/// one in its cell, or in what is kept aside of that.
fn return_address(memory: &Memory, shadows: u64, arenas: &Arenas, frame: &Frame) -> Option<u64> {
    let labels = arenas.program.start.wrapping_add(LABELS_AT as u64);
    let index = frame.label.wrapping_sub(labels) / LABEL_LEN as u64;
    let address = if index < INTERNED_LABELS {
        let entry = shadows + SHADOWS + index * size_of::<Interned>() as u64;
        memory.record::<Interned>(entry).ok()?.return_address
    } else if frame.cell.link & STATE == INTERNED {
        memory.record::<Cell>(frame.at + ASIDE).ok()?.return_address
    } else if frame.cell.link < FREE {
        frame.cell.return_address
    } else {
        0
    };
    Some(address).filter(|address| *address != 0)
}

/// Restores all return addresses that hooks have replaced, and returns their number. `shadows` is the address
/// of the agent's table of shadow stacks, whose cells stay as they are: a frame counts as alive only if its
/// return slot contains an exit label.
///
/// # Errors
/// The process's memory cannot be accessed, or the order's time is over.
pub(crate) fn put_back(pid: i32, memory: &Memory, shadows: u64, arenas: &Arenas) -> io::Result<usize> {
    let mut frames = Vec::new();
    let pages = Pages::of(pid)?;
    for page in pages.present(shadows..shadows + SHADOWS)? {
        let table: Vec<u64> = memory.records(page, PAGE as usize / 8)?;
        for (n, shadow) in table.into_iter().enumerate().filter(|(_, shadow)| *shadow != 0) {
            // The process can have written any number of windows there.
            deadline::check()?;
            let window = ((page - shadows) / 8 + n as u64) * WINDOW;
            for cells in runs(&pages.present(shadow..shadow.saturating_add(2 * WINDOW))?) {
                deadline::check()?;
                let first = window + (cells.start - shadow) / 2;
                find(memory, shadows, &cells, first, arenas, &mut frames)?;
            }
        }
    }
    memory.write_words(&frames)?;
    Ok(frames.len())
}

/// Returns whether any frame has got an interned label: then coroutines may share a stack, and such labels may be in bytes that
/// are copied away at present. `shadows` is the address of the agent's table of shadow stacks.
///
/// # Errors
/// The process's memory cannot be read.
pub(crate) fn take_turns(memory: &Memory, shadows: u64) -> io::Result<bool> {
    let labels: Vec<Interned> = memory.records(shadows + SHADOWS, INTERNED_LABELS as usize)?;
    Ok(labels.iter().any(|label| label.function != 0))
}

/// Joins adjacent pages into ranges of at most one MiB.
fn runs(pages: &[u64]) -> Vec<Range<u64>> {
    const MOST: u64 = 1 << 20;
    let mut runs: Vec<Range<u64>> = Vec::new();
    for &page in pages {
        match runs.last_mut().filter(|run| run.end == page && run.end - run.start < MOST) {
            Some(run) => run.end += PAGE,
            None => runs.push(page..page + PAGE),
        }
    }
    runs
}

/// Returns the return slot and the true return address of each live frame. `cells` are the frames' cells, the
/// first of which belongs to the frame with the given CFA. `shadows` is as above.
fn find(
    memory: &Memory,
    shadows: u64,
    cells: &Range<u64>,
    first: u64,
    arenas: &Arenas,
    frames: &mut Vec<(u64, u64)>,
) -> io::Result<()> {
    let count = (cells.end - cells.start) / CELL;
    let Ok(slots) = memory.records::<u64>(first - 8, count as usize) else {
        // A part of the stack has been unmapped.
        let half = cells.start + (cells.end - cells.start) / 2 / CELL * CELL;
        if half == cells.start {
            return Ok(());
        }
        find(memory, shadows, &(cells.start..half), first, arenas, frames)?;
        return find(memory, shadows, &(half..cells.end), first + (half - cells.start) / 2, arenas, frames);
    };
    if !slots.iter().any(|slot| arenas.contains(*slot)) {
        return Ok(());
    }
    let contents: Vec<Cell> = memory.records(cells.start, count as usize)?;
    let places = (cells.start..).step_by(CELL as usize).zip((first..).step_by(8));
    for ((cell, label), (at, cfa)) in contents.into_iter().zip(slots).zip(places) {
        if cell.return_address != 0
            && arenas.contains(label)
            && let Some(address) = return_address(memory, shadows, arenas, &Frame { cell, at, label })
        {
            frames.push((cfa - 8, address));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_follow_each_other() {
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[0x1000, 0x2000, 0x4000]), [0x1000..0x3000, 0x4000..0x5000]);
        let many: Vec<u64> = (0..300).map(|n| n * PAGE).collect();
        assert_eq!(runs(&many), [0..1 << 20, 1 << 20..300 * PAGE]);
    }
}
