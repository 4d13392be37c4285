//! What happens to all cells of a piece of stack: frames that a jump leaves, return addresses that are put back, blocks that are closed.
//!
//! All of this is integer code; see [`crate::hot::gate`].
#![allow(unsafe_code, reason = "return slots on the calling thread's stack are read and written")]

use crate::hot::blocks::{self, BLOCK};
use crate::hot::cells::{PAGE, REGION, cell, end, free, give_back, is_in_use, return_address, shadow};
use crate::os::kernel;
use crate::os::memory;
use crate::os::task;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::plan::{CLOSED, FREE, INTERNED, LEFT, STATE};

/// Marks the frames whose CFAs lie between two addresses, both included, as left by a jump. If it `is_over` for certain with
/// these frames, because no coroutine can resume them, their cells become free. Stacks may span any number of regions; a
/// region without a shadow has never had frames. Returns whether there were such frames.
pub(crate) fn forget(from: u64, to: u64, is_over: bool) -> bool {
    let mut any = false;
    // A frame's CFA is a multiple of 8.
    let mut at = from.next_multiple_of(8);
    while at <= to {
        let next = (at & !(REGION - 1)) + REGION;
        let Some(shadow) = shadow(at) else {
            at = next;
            continue;
        };
        while at <= to && at < next {
            // No cell of a block that is closed is in use.
            at = blocks::next_open(shadow, at);
            if at > to || at >= next {
                break;
            }
            let cell = cell(shadow, at);
            // A cell that is not in use is not written, so that untouched memory stays unallocated.
            if is_in_use(cell) {
                any = true;
                let state = cell.link().load(Ordering::Relaxed) & STATE;
                cell.link().store(state | LEFT, Ordering::Relaxed);
                if is_over && state == INTERNED {
                    give_back(shadow, cell, at);
                } else if is_over {
                    free(cell);
                }
            }
            at += 8;
        }
    }
    any
}

/// Closes the free cells from a CFA up to another one, and the blocks that consist of such cells. No cell in between may be in use, and the
/// stack must be the calling thread's own, on which nothing else runs.
pub(crate) fn close(from: u64, to: u64) {
    let mut at = from;
    while at < to {
        let next = (at & !(REGION - 1)) + REGION;
        if let Some(shadow) = shadow(at) {
            close_in(shadow, at, if to < next { to } else { next });
        }
        at = next;
    }
}

/// The same within a region that has this shadow.
fn close_in(shadow: u64, from: u64, to: u64) {
    let mut at = blocks::next_open(shadow, from);
    while at < to {
        let (start, block) = (at, (at & !(BLOCK - 1)) + BLOCK);
        let stop = if to < block { to } else { block };
        while at < stop {
            let contents = cell(shadow, at).function_and_link();
            let old = contents.load(Ordering::Relaxed);
            // If a coroutine has an array in the stack of another thread as its stack, the cell may be filled at this moment.
            if old >> 32 >= u64::from(FREE) && old >> 32 != u64::from(CLOSED) {
                let closed = old & u64::from(u32::MAX) | u64::from(CLOSED) << 32;
                let _ = contents.compare_exchange(old, closed, Ordering::Relaxed, Ordering::Relaxed);
            }
            at += 8;
        }
        if at - start == BLOCK {
            blocks::close(shadow, start);
        }
        at = blocks::next_open(shadow, at);
    }
}

/// Puts the return addresses of the frames back whose CFAs lie between two addresses, both included, and ends their use of their cells.
/// `is_exit_label` returns whether a word is an exit label, which shows that a frame is alive. If the stack is not known to be
/// mapped, this ends at the first page that is not, or at the end of the page if the agent makes no system calls any more.
pub(crate) fn put_back(from: u64, to: u64, is_mapped: bool, is_exit_label: impl Fn(u64) -> bool) {
    let mut at = from.next_multiple_of(8);
    // The slots below this address can be read.
    let mut readable = if is_mapped { u64::MAX } else { at.next_multiple_of(PAGE) };
    while at <= to {
        if at > readable {
            if kernel::is_frozen() {
                return;
            }
            let page = (at - 8) & !(PAGE - 1);
            readable = page + PAGE * memory::readable_pages(task::getpid(), page);
            if at > readable {
                return;
            }
        }
        let next = (at & !(REGION - 1)) + REGION;
        let Some(shadow) = shadow(at) else {
            at = next;
            continue;
        };
        while at <= to && at < next && at <= readable {
            let cell = cell(shadow, at);
            if cell.return_address().load(Ordering::Relaxed) != 0 {
                // SAFETY: the slot is mapped, and a multiple of 8. It is on the calling thread's stack, above its stack pointer.
                // If the extent of that is not known, it may also belong to another stack, on which another thread runs.
                let slot = unsafe { AtomicU64::from_ptr((at - 8) as *mut u64) };
                let label = slot.load(Ordering::Relaxed);
                // The word belongs to the frame's thunk as long as it is the exit label.
                if is_exit_label(label)
                    && let Some(return_address) = return_address(shadow, cell, at, label)
                {
                    let is_put_back = if is_mapped {
                        slot.store(return_address, Ordering::Relaxed);
                        true
                    } else {
                        slot.compare_exchange(label, return_address, Ordering::Relaxed, Ordering::Relaxed)
                            .is_ok()
                    };
                    if is_put_back {
                        end(shadow, cell, at, label);
                    }
                }
            }
            at += 8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hot::cells::{SHADOW, set};

    #[test]
    fn a_block_is_closed_if_no_cell_is_in_use() {
        let protection = memory::PROT_READ | memory::PROT_WRITE;
        let shadow = PAGE + memory::map_zeros(PAGE + 2 * SHADOW, protection).expect("memory");
        let (block, cfa) = (17 * REGION + 3 * BLOCK, 17 * REGION + 3 * BLOCK + 16);
        blocks::open(shadow, cfa);
        let used = cell(shadow, cfa);
        set(used, 7, 0, 0x40_1234);
        used.link().store(FREE | 5, Ordering::Relaxed);
        close_in(shadow, block, block + BLOCK);
        assert_eq!(blocks::next_open(shadow, block), 18 * REGION);
        // No thunk takes it for a free one, and it names its function.
        assert_eq!(used.link().load(Ordering::Relaxed), CLOSED);
        assert_eq!(used.function().load(Ordering::Relaxed), 7);
        assert!(!is_in_use(used) && CLOSED >> 24 != FREE >> 24);
    }
}
