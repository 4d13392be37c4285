//! Restores return addresses that hooks have replaced. Every hooked frame on a stack, of a thread or of a
//! coroutine, has a cell in the shadow of its stack and an exit label in its return slot.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use gprofinject_abi::plan::{Cell, WINDOW};
use gprofinject_abi::region::PAGE;

use crate::os::proc;
use crate::target::agent::arenas::Arenas;
use crate::target::threads::deadline;
use crate::target::threads::memory::Memory;

const CELL: u64 = size_of::<Cell>() as u64;
/// The length of the table, in bytes: one word for each window of the user's address space, which has 47
/// bits.
const TABLE: u64 = (1 << 47) / WINDOW * 8;

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

/// Returns what a return slot contained before a hook replaced it, if one did. The frame's CFA is the address
/// after the slot, and `shadows` is the address of the agent's table of shadow stacks.
pub(crate) fn replaced(memory: &Memory, shadows: u64, cfa: u64) -> Option<u64> {
    let shadow = memory.word(shadows + cfa / WINDOW * 8).ok().filter(|shadow| *shadow != 0)?;
    let cell: Cell = memory.record(shadow + (cfa % WINDOW) / 8 * CELL).ok()?;
    Some(cell.return_address).filter(|address| *address != 0)
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
    for page in pages.present(shadows..shadows + TABLE)? {
        let table: Vec<u64> = memory.records(page, PAGE as usize / 8)?;
        for (n, shadow) in table.into_iter().enumerate().filter(|(_, shadow)| *shadow != 0) {
            // The process can have written any number of windows there.
            deadline::check()?;
            let window = ((page - shadows) / 8 + n as u64) * WINDOW;
            for cells in runs(&pages.present(shadow..shadow.saturating_add(2 * WINDOW))?) {
                deadline::check()?;
                let first = window + (cells.start - shadow) / 2;
                find(memory, &cells, first, arenas, &mut frames)?;
            }
        }
    }
    memory.write_words(&frames)?;
    Ok(frames.len())
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
/// first of which belongs to the frame with the given CFA.
fn find(
    memory: &Memory,
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
        find(memory, &(cells.start..half), first, arenas, frames)?;
        return find(memory, &(half..cells.end), first + (half - cells.start) / 2, arenas, frames);
    };
    if !slots.iter().any(|slot| arenas.contains(*slot)) {
        return Ok(());
    }
    let cells: Vec<Cell> = memory.records(cells.start, count as usize)?;
    for ((cell, slot), cfa) in cells.into_iter().zip(slots).zip((first..).step_by(8)) {
        let address = cell.return_address;
        if address != 0 && address != cfa - 8 && arenas.contains(slot) {
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
