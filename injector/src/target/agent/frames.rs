//! Restores return addresses that hooks have replaced. Every hooked frame on a stack, of a thread or of a
//! coroutine, has a cell in the shadow of its stack and an exit label in its return slot.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use gprofinject_abi::plan::{
    ASIDE, Cell, FREE, FunctionRecord, INTERNED, INTERNED_LABELS, Interned, LABEL_LEN, LABELS_AT, LIBRARIES,
    SHADOWS, STATE, WINDOW,
};
use gprofinject_abi::region::PAGE;

use crate::os::proc;
use crate::target::agent::arenas::Arenas;
use crate::target::threads::deadline;
use crate::target::threads::memory::Memory;

const CELL: u64 = size_of::<Cell>() as u64;

/// The page map of a process (/proc/PID/pagemap).
pub(super) struct Pages(File);

impl Pages {
    pub(super) fn of(pid: i32) -> io::Result<Pages> {
        File::open(format!("/proc/{}/pagemap", proc::visible_thread(pid))).map(Pages)
    }

    /// Returns the addresses of the pages in a range that have been touched.
    ///
    /// # Errors
    /// The page map cannot be read.
    pub(super) fn present(&self, range: Range<u64>) -> io::Result<Vec<u64>> {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        let mut bytes = vec![0; ((range.end - range.start) / PAGE * 8) as usize];
        self.0.read_exact_at(&mut bytes, range.start / PAGE * 8)?;
        let entries = bytes.chunks_exact(8).map(|entry| entry.try_into().map_or(0, u64::from_le_bytes));
        let there = entries.zip((range.start..).step_by(PAGE as usize));
        Ok(there.filter(|(entry, _)| entry & (PRESENT | SWAPPED) != 0).map(|(_, address)| address).collect())
    }
}

/// What has to be known to find hooked frames in a process.
pub(crate) struct Frames<'a> {
    pub(crate) memory: &'a Memory,
    /// The address of the agent's table of shadow stacks.
    pub(crate) shadows: u64,
    pub(super) arenas: &'a Arenas,
}

/// A frame as its cell and its return slot describe it.
struct Frame {
    cell: Cell,
    /// The address of the cell.
    at: u64,
    /// What the return slot contains: a word in an arena.
    label: u64,
}

/// The frames that have not returned.
#[derive(Default)]
struct Found {
    /// The return slot and the true return address of each frame in its place.
    here: Vec<(u64, u64)>,
    /// The functions of those that are elsewhere.
    away: HashSet<u32>,
}

impl Frames<'_> {
    /// Returns what a return slot contained before a hook replaced it with `label`, if one did. The frame's CFA is the address
    /// after the slot.
    pub(crate) fn replaced(&self, cfa: u64, label: u64) -> Option<u64> {
        let at = self.cell(cfa)?;
        let cell: Cell = self.memory.record(at).ok()?;
        self.return_address(&Frame { cell, at, label })
    }

    /// Returns the address of the cell of a frame, if its stack has a shadow.
    pub(super) fn cell(&self, cfa: u64) -> Option<u64> {
        let shadow = self.memory.word(self.shadows + cfa / WINDOW * 8).ok().filter(|shadow| *shadow != 0)?;
        Some(shadow + (cfa % WINDOW) / 8 * CELL)
    }

    /// Returns the address of the entry of an interned label, if a word is one.
    pub(super) fn interned(&self, label: u64) -> Option<u64> {
        let labels = self.arenas.program.start.wrapping_add(LABELS_AT as u64);
        let index = label.wrapping_sub(labels) / LABEL_LEN as u64;
        (index < INTERNED_LABELS).then(|| self.shadows + SHADOWS + index * size_of::<Interned>() as u64)
    }

    /// Returns the return address of a frame, if it is alive: the one for which its label stands or, if it is an exit label, the
    /// one in its cell, or in what is kept aside of that.
    fn return_address(&self, frame: &Frame) -> Option<u64> {
        let address = if let Some(entry) = self.interned(frame.label) {
            self.memory.record::<Interned>(entry).ok()?.return_address
        } else if frame.cell.link & STATE == INTERNED {
            self.memory.record::<Cell>(frame.at + ASIDE).ok()?.return_address
        } else if frame.cell.link < FREE {
            frame.cell.return_address
        } else {
            0
        };
        Some(address).filter(|address| *address != 0)
    }

    /// Returns the labels of the frames that may be away: the exit labels of these functions, the records of which are as
    /// [`Order::records_of_functions`](gprofinject_abi::attach::Order::records_of_functions) says, and all interned labels that frames
    /// have got.
    ///
    /// # Errors
    /// The process's memory cannot be read.
    pub(super) fn labels(&self, away: &HashSet<u32>, records: &[[u64; 2]; 2]) -> io::Result<HashSet<u64>> {
        let mut labels = HashSet::new();
        for &number in away {
            let [records, base] = records[usize::from(number >= LIBRARIES)];
            let at = records.wrapping_add(u64::from(number).wrapping_mul(size_of::<FunctionRecord>() as u64));
            labels.insert(base.wrapping_add(self.memory.record::<FunctionRecord>(at)?.exit.into()));
        }
        let interned: Vec<Interned> =
            self.memory.records(self.shadows + SHADOWS, INTERNED_LABELS as usize)?;
        let first = self.arenas.program.start.wrapping_add(LABELS_AT as u64);
        let used = (first..).step_by(LABEL_LEN).zip(interned).filter(|(_, entry)| entry.function != 0);
        labels.extend(used.map(|(label, _)| label));
        Ok(labels)
    }

    /// Restores all return addresses that hooks have replaced. Returns the functions that have frames elsewhere: standard frames
    /// that have not returned, and whose return slots contain something else. They were copied away, or abandoned. The cells stay
    /// as they are.
    ///
    /// # Errors
    /// The process's memory cannot be accessed, or the order's time is over.
    pub(super) fn put_back(&self, pid: i32) -> io::Result<HashSet<u32>> {
        let (memory, shadows) = (self.memory, self.shadows);
        let mut found = Found::default();
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
                    self.find(&cells, first, &mut found)?;
                }
            }
        }
        memory.write_words(&found.here)?;
        Ok(found.away)
    }

    /// Finds the return slot and the true return address of each live frame. `cells` are the frames' cells, the first of which
    /// belongs to the frame with the given CFA.
    fn find(&self, cells: &Range<u64>, first: u64, found: &mut Found) -> io::Result<()> {
        let count = (cells.end - cells.start) / CELL;
        let Ok(slots) = self.memory.records::<u64>(first - 8, count as usize) else {
            // A part of the stack has been unmapped.
            let half = cells.start + (cells.end - cells.start) / 2 / CELL * CELL;
            if half == cells.start {
                return Ok(());
            }
            self.find(&(cells.start..half), first, found)?;
            return self.find(&(half..cells.end), first + (half - cells.start) / 2, found);
        };
        let contents: Vec<Cell> = self.memory.records(cells.start, count as usize)?;
        let places = (cells.start..).step_by(CELL as usize).zip((first..).step_by(8));
        for ((cell, label), (at, cfa)) in contents.into_iter().zip(slots).zip(places) {
            if cell.return_address == 0 || cell.link >= FREE {
                continue;
            }
            if self.arenas.contains(label)
                && let Some(address) = self.return_address(&Frame { cell, at, label })
            {
                found.here.push((cfa - 8, address));
            }
            // What a standard frame has in its cell, or aside if another frame uses that.
            let standard = match cell.link & STATE {
                INTERNED => {
                    self.memory.record(at + ASIDE).ok().filter(|aside: &Cell| aside.return_address != 0)
                }
                _ => Some(cell),
            };
            if let Some(standard) = standard
                && (!self.arenas.contains(label) || self.interned(label).is_some())
            {
                found.away.insert(standard.function);
            }
        }
        Ok(())
    }
}

/// Joins adjacent pages into ranges of at most one MiB.
pub(super) fn runs(pages: &[u64]) -> Vec<Range<u64>> {
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
