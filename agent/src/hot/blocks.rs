//! The blocks of a stack in which a search for a live frame can find one.
//!
//! A *block* is [`BLOCK`] bytes of stack. A bit for each says whether it is *open*: whether any cell in it may be in use. No thunk sets such a
//! bit, because a thunk fills only cells that are free and not [`CLOSED`](gprofinject_abi::plan::CLOSED); any other one leads to the agent ([`cells::occupied`]), which opens the
//! block. So the bits cost nothing until a search has passed over a block in vain. It closes the block then ([`ranges::close`]), and the next ones
//! skip it, 64 blocks at a time: a search costs what has happened on the stack since the last one, and not how deep the stack is.
//!
//! All of this is integer code; see [`crate::hot::gate`].
//!
//! [`cells::occupied`]: crate::hot::cells::occupied
//! [`ranges::close`]: crate::hot::ranges::close
#![allow(unsafe_code, reason = "the bits are places at a distance from a shadow")]

use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::plan::WINDOW as REGION;

/// The length in bytes of a block of stack.
pub(crate) const BLOCK: u64 = 4096;

const WORDS: u64 = REGION / BLOCK / 64;

/// Returns the word with the bit of the block that contains an address.
fn word(shadow: u64, address: u64) -> &'static AtomicU64 {
    const PAGE: u64 = 4096;
    const { assert!(8 * WORDS <= PAGE / 2) };
    let index = (address & (REGION - 1)) / BLOCK / 64;
    // SAFETY: the page in front of each shadow stays mapped, and only this module accesses its first half.
    unsafe { &*((shadow - PAGE + 8 * index) as *const AtomicU64) }
}

fn bit(address: u64) -> u64 {
    1 << (address / BLOCK % 64)
}

/// Opens the block with the cell of a CFA, which is about to be used.
pub(crate) fn open(shadow: u64, cfa: u64) {
    let word = word(shadow, cfa);
    if word.load(Ordering::Relaxed) & bit(cfa) == 0 {
        // Other threads may have their stacks in the same region.
        word.fetch_or(bit(cfa), Ordering::Relaxed);
    }
}

/// Returns the first CFA from the given one on whose block is open, or one in the next region if there is none.
pub(crate) fn next_open(shadow: u64, cfa: u64) -> u64 {
    let mut rest = word(shadow, cfa).load(Ordering::Relaxed) & !(bit(cfa) - 1);
    if rest & bit(cfa) != 0 {
        return cfa;
    }
    let mut at = cfa & !(64 * BLOCK - 1);
    while rest == 0 {
        at += 64 * BLOCK;
        if at & (REGION - 1) == 0 {
            return at;
        }
        rest = word(shadow, at).load(Ordering::Relaxed);
    }
    at + BLOCK * u64::from(rest.trailing_zeros())
}

/// Closes the block that contains an address.
pub(crate) fn close(shadow: u64, address: u64) {
    word(shadow, address).fetch_and(!bit(address), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory;

    #[test]
    fn blocks_are_open_while_their_cells_may_be_in_use() {
        const PAGE: u64 = 4096;
        let protection = memory::PROT_READ | memory::PROT_WRITE;
        let shadow = PAGE + memory::map_zeros(PAGE + 4 * REGION, protection).expect("memory");
        let region = 17 * REGION;
        let (first, second) = (region + 3 * BLOCK + 16, region + 200 * BLOCK + 8);
        assert_eq!(next_open(shadow, region), region + REGION);
        open(shadow, first);
        open(shadow, second);
        assert_eq!(next_open(shadow, region), first - 16);
        assert_eq!(next_open(shadow, first), first);
        assert_eq!(next_open(shadow, first + BLOCK), second - 8);
        assert_eq!(next_open(shadow, second + BLOCK), region + REGION);

        close(shadow, first);
        assert_eq!(next_open(shadow, region), second - 8);
    }
}
