//! Direct calls out of large frames, whose callers would have to be searched for again and again.
//!
//! A thunk does not note the frame that a direct call comes from. When such a call has returned and unhooked code calls
//! back next, [`crate::callers`] searches the cells above for the caller. If the caller's frame is large, that takes long,
//! and a function that calls directly and through unhooked code in turn pays for it each time. So after a long search the
//! home slots of the calls out of that function are *linked*: [`LINKED`] is put into their keys. The thunk finds no such
//! key, and the call comes to `arcs::known`, which finds the caller's frame while the caller's registers are still there,
//! and leaves a link to it in the cell. From then on the call is like one out of unhooked code: its return is an event, and
//! no search is needed after it.
//!
//! A linked call costs about as much as ten others. Therefore a key holds how many more calls are linked, in proportion to
//! what the search has cost. After these the key is put back, until the next long search.
//!
//! `arcs::known` calls this code while vector registers still hold the program's values. So nothing here may touch one;
//! see [`crate::gate`].
#![allow(unsafe_code)]

use crate::agent::Agent;
use crate::callers::{Frames, Nearest};
use crate::cells::existing;
use crate::words;
use gprofinject_abi::plan::{FunctionRecord, LEFT};
use gprofinject_abi::region::{CALLER, LINKED, LINKS, LINKS_SHIFT, SITE, Slot, TAIL, is_linked, plain_key};

/// Bytes of stack from which on a search counts as long.
const FAR: u64 = 2048;
/// Calls that are linked for each so many bytes of stack that were searched.
const BYTES_PER_CALL: u64 = 128;

/// Tail calls, one after the other in one frame, through which the function is looked for that was called.
const TAILS: u32 = 3;

/// A search that began at the cell of the CFA `start` has found the frame of function `number` at `caller`: links the
/// calls that may have led there.
pub(crate) fn searched(agent: &Agent, start: u64, caller: u64, number: u32) {
    if caller.saturating_sub(start) < FAR {
        return;
    }
    // SAFETY: the calling thread's own words.
    let block = unsafe { (*words::get()).block };
    if block == agent.no_block || block == agent.lost_block {
        return;
    }
    let calls = (caller - start) / BYTES_PER_CALL;
    let calls = if calls < LINKS { calls } else { LINKS };
    // The frame of the last event, whose cell is the one before, or of one of the functions that had called it. Old cells
    // in between may name others: then a call is linked in vain, for a while, and the next long search goes further.
    let mut at = start - 8;
    while at < start + FAR {
        if let Some(cell) = existing(at) {
            // SAFETY: a cell in a shadow, which is never unmapped.
            let cell = unsafe { &*cell };
            if cell.return_address == at - 8 && link_calls(agent, block, cell.function, number, calls, TAILS)
            {
                return;
            }
        }
        at += 8;
    }
}

/// Links the calls of `callee` out of `caller`, if they have home slots, and of the functions that tail-call `callee`, as
/// far as `tails` says: a cell holds the function that its frame was handed to last. Answers with whether one was not
/// linked yet.
fn link_calls(agent: &Agent, block: u64, callee: u32, caller: u32, calls: u64, tails: u32) -> bool {
    let (record, caller_record) = (agent.function(callee), agent.function(caller));
    let start = agent.bias.wrapping_add(caller_record.entry);
    let mut linked = false;
    let mut index = 0;
    while index < record.slot_count {
        let slot =
            (block + u64::from(record.slots) + u64::from(index) * size_of::<Slot>() as u64) as *mut Slot;
        index += 1;
        // SAFETY: one of the function's slots, in the thread's own block.
        let key = unsafe { (*slot).key };
        let tail_caller = if key & (CALLER | TAIL) == TAIL {
            Some((key & !TAIL) as u32)
        } else if key & (CALLER | TAIL | SITE) == SITE {
            agent.function_at(key & !SITE)
        } else {
            // A return address may lie one byte behind the function. A linked key does not lie there.
            if key != 0 && key.wrapping_sub(start) <= caller_record.size.into() {
                // SAFETY: as above; a slot with a key is committed.
                unsafe { (&raw mut (*slot).key).write_volatile(key | LINKED | calls << LINKS_SHIFT) };
                linked = true;
            }
            None
        };
        if let Some(number) = tail_caller.filter(|&number| tails > 0 && number != callee) {
            linked |= link_calls(agent, block, number, caller, calls, tails - 1);
        }
    }
    linked
}

/// Whether the slot's key is linked, so that the call that is being counted leaves a link. This uses up one of the linked
/// calls that the key still holds; after the last one, the slot has its plain key again.
///
/// # Safety
/// `slot` must be a slot with a key in the calling thread's block.
pub(crate) unsafe fn is_next_linked(slot: *mut Slot) -> bool {
    // SAFETY: passed on.
    unsafe {
        let key = (*slot).key;
        if !is_linked(key) {
            return false;
        }
        let less = key.wrapping_sub(1 << LINKS_SHIFT);
        let next = if key >> LINKS_SHIFT & LINKS == 0 { plain_key(key) } else { less };
        (&raw mut (*slot).key).write_volatile(next);
    }
    true
}

/// Puts the key back: the caller of such a call could not be told.
///
/// # Safety
/// `slot` must be a slot with a key in the calling thread's block.
pub(crate) unsafe fn unlink(slot: *mut Slot) {
    // SAFETY: passed on.
    unsafe { (&raw mut (*slot).key).write_volatile(plain_key((*slot).key)) };
}

/// The frame that a direct call of function `number` comes from, by what holds of it at the callee's entry. `base` is
/// the caller's rbp.
pub(crate) fn caller(
    agent: &Agent,
    number: u32,
    return_address: u64,
    cfa: u64,
    base: u64,
) -> Option<Nearest> {
    let frames = Frames::above(agent, cfa)?;
    let function = agent.function_at(return_address.wrapping_sub(agent.bias).wrapping_sub(1))?;
    let is_it = |at: u64| at.is_multiple_of(8) && frames.is_alive(at) == Some(function);
    // A frame whose size changes has a frame pointer: what is at rbp is the caller's rbp, and behind it the return
    // address.
    let framed = base.wrapping_add(16);
    if is_it(framed) {
        return Some(frames.nearest(function, framed));
    }
    // The size of any other frame is the same at each call from one place, so its distance is. It is remembered where no
    // frame can be, because CFAs are multiples of 16: in the next cell. Should there be a frame all the same, it fills
    // the cell, and the distance is lost.
    let memory = existing(cfa + 8)?;
    // SAFETY: a cell in a shadow, which is never unmapped.
    let remembered = unsafe { *memory };
    if remembered.return_address == 0 && remembered.function == number && remembered.link > LEFT {
        let at = cfa + 8 * u64::from(remembered.link - 1);
        if is_it(at) {
            return Some(frames.nearest(function, at));
        }
    }
    let nearest = frames.first()?;
    if nearest.function != Some(function) {
        return None;
    }
    if remembered.return_address == 0 {
        // One store, which needs no vector register.
        let contents = u64::from(number) | u64::from(nearest.link_from(cfa)) << 32;
        // SAFETY: as above.
        unsafe { (&raw mut (*memory).function).cast::<u64>().write_volatile(contents) };
    }
    Some(nearest)
}

impl Agent {
    /// The hooked function around a link address, not counting parts that stand elsewhere.
    fn function_at(&self, address: u64) -> Option<u32> {
        let (mut lo, mut hi) = (0, self.functions_count);
        while lo < hi {
            let middle = lo + (hi - lo) / 2;
            if self.function(middle).entry <= address {
                lo = middle + 1;
            } else {
                hi = middle;
            }
        }
        let number = lo.checked_sub(1)?;
        let record: &FunctionRecord = self.function(number);
        (address < record.entry + u64::from(record.size)).then_some(number)
    }
}
