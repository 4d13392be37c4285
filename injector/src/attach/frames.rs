//! Return addresses that the hooks have replaced, put back: every frame that is on a stack, of a thread or of a
//! coroutine, has a cell in the shadow of its stack, and an exit label in its return slot.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use gprofinject_abi::plan::{Cell, WINDOW};

use super::tracee::Memory;

const PAGE: u64 = 4096;
const CELL: u64 = size_of::<Cell>() as u64;
/// One word for each window of the address space: user addresses have 47 bits.
const TABLE: u64 = (1 << 47) / WINDOW * 8;

/// Which of a process's pages are there.
struct Pages(File);

impl Pages {
    fn of(pid: i32) -> io::Result<Pages> {
        File::open(format!("/proc/{pid}/pagemap")).map(Pages)
    }

    /// Addresses of the pages in a range that have ever been touched.
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

/// What a return slot has held before a hook replaced it. The frame's CFA is behind the slot.
pub(crate) fn replaced(memory: &Memory, shadows: u64, cfa: u64) -> Option<u64> {
    let shadow =
        memory.word(shadows + cfa / WINDOW * 8).ok().filter(|shadow| shadows != 0 && *shadow != 0)?;
    memory.word(shadow + (cfa % WINDOW) / 8 * CELL).ok().filter(|address| *address != 0)
}

/// Puts all of them back; how many. `shadows` is the agent's table, 0: there is none.
pub(crate) fn put_back(pid: i32, memory: &Memory, shadows: u64, arena: &Range<u64>) -> io::Result<usize> {
    let mut count = 0;
    if shadows == 0 {
        return Ok(count);
    }
    let pages = Pages::of(pid)?;
    for page in pages.present(shadows..shadows + TABLE)? {
        let words = memory.bytes(page, PAGE as usize)?;
        for (n, word) in words.chunks_exact(8).enumerate() {
            let shadow = word.try_into().map_or(0, u64::from_le_bytes);
            if shadow != 0 {
                let window = ((page - shadows) / 8 + n as u64) * WINDOW;
                for page in pages.present(shadow..shadow + 2 * WINDOW)? {
                    count += in_page(memory, page, window + (page - shadow) / 2, arena)?;
                }
            }
        }
    }
    Ok(count)
}

/// The cells of one page, the first of which is of the frame with that CFA.
fn in_page(memory: &Memory, page: u64, first: u64, arena: &Range<u64>) -> io::Result<usize> {
    let cells = memory.bytes(page, PAGE as usize)?;
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    // The stack may be gone.
    let Ok(slots) = memory.bytes(first - 8, (PAGE / CELL * 8) as usize) else {
        return one_by_one(memory, &cells, page, first, arena);
    };
    let mut count = 0;
    for (n, (cell, slot)) in cells.chunks_exact(CELL as usize).zip(slots.chunks_exact(8)).enumerate() {
        count +=
            usize::from(put(memory, word(&cell[..8]), word(slot), first + 8 * n as u64, page, n, arena)?);
    }
    Ok(count)
}

fn one_by_one(memory: &Memory, cells: &[u8], page: u64, first: u64, arena: &Range<u64>) -> io::Result<usize> {
    let mut count = 0;
    for (n, cell) in cells.chunks_exact(CELL as usize).enumerate() {
        let cfa = first + 8 * n as u64;
        let address = cell[..8].try_into().map_or(0, u64::from_le_bytes);
        if address != 0
            && let Ok(slot) = memory.word(cfa - 8)
        {
            count += usize::from(put(memory, address, slot, cfa, page, n, arena)?);
        }
    }
    Ok(count)
}

/// A frame is on the stack if its return slot holds an exit label.
fn put(
    memory: &Memory,
    address: u64,
    slot: u64,
    cfa: u64,
    page: u64,
    n: usize,
    arena: &Range<u64>,
) -> io::Result<bool> {
    if address == 0 || address == cfa - 8 || !arena.contains(&slot) {
        return Ok(false);
    }
    memory.write(cfa - 8, &address.to_le_bytes())?;
    memory.write(page + n as u64 * CELL, &[0; 8])?;
    Ok(true)
}
