//! Interned labels: addresses in the program's arena that stand for a function and a return address, and which a frame can have
//! in its return slot in place of its function's exit label ([`gprofinject_abi::plan::Interned`]).
//!
//! The table is filled from any thread and any signal handler, and an entry never changes once it is complete. All of this is
//! integer code (`hot/gate.rs`).
#![allow(unsafe_code, reason = "the table is mapped, and an address on a stack leads to its entries")]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gprofinject_abi::plan::{INTERNED_LABELS, Interned, LABEL_LEN, LABELS_AT};
use gprofinject_abi::shared::InternedRef;

/// The address of the table.
static TABLE: AtomicU64 = AtomicU64::new(0);

/// Whether frames take turns: see [`take_turns`].
static TAKE_TURNS: AtomicBool = AtomicBool::new(false);

/// Bytes of the table.
pub(crate) const BYTES: u64 = INTERNED_LABELS * size_of::<Interned>() as u64;

/// An entry is at most this far from the place to which its contents are hashed.
const PROBES: u64 = 32;

/// Sets the address of the table.
///
/// # Safety
/// Zeros must be there, [`BYTES`] long, writable and aligned, and stay mapped.
pub(crate) unsafe fn set_table(at: u64) {
    TABLE.store(at, Ordering::Relaxed);
}

/// The address of the first label, or 0 if the program has no arena.
static FIRST: AtomicU64 = AtomicU64::new(0);

/// Sets the address of the program's arena, which contains the labels.
pub(crate) fn set_arena(arena: u64) {
    FIRST.store(arena + LABELS_AT as u64, Ordering::Relaxed);
}

fn labels() -> u64 {
    FIRST.load(Ordering::Relaxed)
}

/// Returns whether a frame has vanished although no jump has left it. Then coroutines share a stack: frames with one CFA take turns, and an
/// interned frame is alive if its label is there, whatever its cell contains. In other programs, such a word is a remainder on the stack.
pub(crate) fn take_turns() -> bool {
    TAKE_TURNS.load(Ordering::Relaxed)
}

/// Notes that a frame has vanished although no jump has left it.
pub(crate) fn note_turn() {
    TAKE_TURNS.store(true, Ordering::Relaxed);
}

/// Returns the entry of the label that is at an address or, while the code there calls the agent, before it.
pub(crate) fn at(address: u64) -> Option<InternedRef> {
    let index = address.wrapping_sub(labels()) / LABEL_LEN as u64;
    if index >= INTERNED_LABELS { None } else { entry(index) }
}

fn entry(index: u64) -> Option<InternedRef> {
    let table = TABLE.load(Ordering::Relaxed);
    if table == 0 {
        return None;
    }
    // SAFETY: the caller of `set_table` has guaranteed that the table is there, and callers have compared the index.
    unsafe { InternedRef::at(table + index * size_of::<Interned>() as u64) }
}

/// Returns the label that stands for a function and a return address, or `None` if there is none any more.
pub(crate) fn label(number: u32, return_address: u64) -> Option<u64> {
    /// Knuth's multiplier: the golden ratio.
    const HASH: u32 = 0x9e37_79b1;
    if labels() == 0 {
        return None;
    }
    let hash = (return_address as u32 ^ number.rotate_left(16)).wrapping_mul(HASH);
    let home = u64::from(hash >> (32 - INTERNED_LABELS.trailing_zeros()));
    let mut probe = 0;
    while probe < PROBES {
        let index = (home + probe) % INTERNED_LABELS;
        let entry = entry(index)?;
        let claim = entry.function().compare_exchange(
            0,
            number.wrapping_add(1),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        let is_mine = match claim {
            Ok(_) => {
                entry.return_address().store(return_address, Ordering::Release);
                true
            }
            // An entry whose return address is not stored yet belongs to another thread, or to code that this one has interrupted.
            Err(owner) => {
                owner == number.wrapping_add(1)
                    && entry.return_address().load(Ordering::Acquire) == return_address
            }
        };
        if is_mine {
            return Some(labels() + index * LABEL_LEN as u64);
        }
        probe += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory;

    #[test]
    fn labels_are_interned_once_and_run_out() {
        let at_table = memory::map_zeros(BYTES, memory::PROT_READ | memory::PROT_WRITE).expect("memory");
        // SAFETY: the memory is zeros and stays mapped.
        unsafe { set_table(at_table) };
        set_arena(0x5000_0000);
        let first = label(7, 0x40_1234).expect("a label");
        assert_eq!(label(7, 0x40_1234), Some(first));
        assert_ne!(label(8, 0x40_1234), Some(first));
        assert_ne!(label(7, 0x40_1235), Some(first));
        for behind in [0, 6] {
            let entry = at(first + behind).expect("an entry");
            assert_eq!(entry.return_address().load(Ordering::Relaxed), 0x40_1234);
            assert_eq!(entry.function().load(Ordering::Relaxed), 8);
        }
        assert!(at(0x5000_0000).is_none());
        assert!(at(0x5000_0000 + LABELS_AT as u64 + INTERNED_LABELS * LABEL_LEN as u64).is_none());
        let many = (0..2 * INTERNED_LABELS).filter(|n| label(9, n * 16).is_some()).count() as u64;
        assert!(many > INTERNED_LABELS * 3 / 4 && many <= INTERNED_LABELS, "{many}");
    }
}
