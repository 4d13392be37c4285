//! The *clear part* of a thread's own stack: addresses between which no frame is alive, as a search has found.
//!
//! Code that was made at run time calls hooked functions again and again from about the same depth, far below the frame that is charged. The last
//! event is then one of a function that is gone ([`crate::hot::callers`]), so each such call would search the stack in between. But once searches
//! have examined many cells in vain, they close them ([`crate::hot::ranges::close`]), and note the part in two thread words. From then on,
//! searches and gates that come there go on at the part's end. If a function is entered there, its thunk finds a closed cell and leads to the
//! agent, and the part becomes shorter ([`shrink`]). Nothing else begins a frame there.
//!
//! To close a cell costs more than to pass over it, above all if a function is entered there soon. So a search closes cells after the thread's
//! searches have examined [`PATIENCE`] times as many in vain since that was done last.
//!
//! All of this is integer code; see [`crate::hot::gate`].

use crate::os::words;
use core::sync::atomic::{Ordering, compiler_fence};

/// See the module's documentation.
pub(crate) const PATIENCE: u64 = 16;

/// After this number of cells that were examined in vain, the gates leave it to a search to find out whether it is time to close them.
pub(crate) const MUCH: u64 = 32 * PATIENCE;

/// Returns the start of the clear part, or an address above all stacks if there is none.
pub(crate) fn start() -> u64 {
    match words::get().clear_from().load(Ordering::Relaxed) {
        0 => u64::MAX,
        from => from,
    }
}

/// Returns the end of the clear part if an address lies in it, and otherwise the address.
pub(crate) fn skip(at: u64) -> u64 {
    let words = words::get();
    let to = words.clear_to().load(Ordering::Relaxed);
    if at >= start() && at < to { to } else { at }
}

/// Notes that a frame with this CFA begins.
pub(crate) fn shrink(cfa: u64) {
    if skip(cfa) != cfa {
        let words = words::get();
        words.clear_from().store((cfa & !7) + 8, Ordering::Relaxed);
        words.vain().store(0, Ordering::Relaxed);
    }
}

/// Notes that a search has examined this number of cells in vain. Returns whether it is time to close them.
pub(crate) fn is_time(cells: u64) -> bool {
    if cells == 0 {
        return false;
    }
    let vain = words::get().vain();
    let sum = vain.load(Ordering::Relaxed) + cells;
    let is_time = sum >= PATIENCE * cells;
    vain.store(if is_time { 0 } else { sum }, Ordering::Relaxed);
    is_time
}

/// Makes the addresses from `from` up to `to` the clear part. All cells in between must be closed, or have never been in use.
pub(crate) fn set(from: u64, to: u64) {
    let words = words::get();
    let from = if skip(from) == from { from } else { start() };
    // A signal handler sees the old part, none, or the new one.
    words.clear_from().store(u64::MAX, Ordering::Relaxed);
    compiler_fence(Ordering::Release);
    words.clear_to().store(to, Ordering::Relaxed);
    compiler_fence(Ordering::Release);
    words.clear_from().store(from, Ordering::Relaxed);
}
