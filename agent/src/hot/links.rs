//! Direct calls from large frames, where the search for the caller would be long and would be repeated often.
//!
//! A thunk does not record the caller's frame of a direct call. When such a call has returned and unhooked
//! code makes a callback next, [`crate::hot::callers`] searches the cells above for the caller. If the
//! caller's frame is large, that takes long, and a function that alternates between direct calls and calls
//! through unhooked code causes the search each time. So after a long search, the home slots of the calls
//! from that function are *linked*: [`LINKED`] is put into their keys. The thunk does not find such a key and
//! calls `arcs::known`, which finds the caller's frame while the caller's registers still have their values,
//! and stores a link to it in the cell. From then on, the call is handled like one from unhooked code: its
//! return is an event, and no search is needed after it.
//!
//! A linked call costs about as much as ten others. Therefore a key holds the number of further calls to
//! link, which is proportional to the cost of the search. After these calls, the plain key is restored until
//! the next long search.
//!
//! `arcs::known` calls this code while vector registers still hold the program's values. So nothing here may touch one;
//! see [`crate::hot::gate`].

use crate::hot::cells::existing;
use crate::hot::slots;
use crate::hot::threads;
use crate::program::agent::Agent;
use core::sync::atomic::Ordering;
use gprofinject_abi::region::{CALLER, LINKED, LINKS, LINKS_SHIFT, SITE, Slot, TAIL, is_linked, plain_key};
use gprofinject_abi::shared::{BlockRef, SlotRef};

/// A search over at least this many bytes of stack counts as long.
const FAR: u64 = 2048;
/// One call is linked for each this many bytes of stack that were searched.
const BYTES_PER_CALL: u64 = 128;

/// The greatest number of successive tail calls in one frame that are followed back to the function that was
/// called.
const TAILS: u32 = 3;

/// Links the calls that may have made a search necessary. The search began at the cell of the CFA `start` and
/// found the frame of function `number` at `caller`.
pub(crate) fn searched(agent: &Agent, start: u64, caller: u64, number: u32) {
    if caller.saturating_sub(start) < FAR {
        return;
    }
    let Some(block) = threads::existing(agent) else { return };
    let calls = (caller - start) / BYTES_PER_CALL;
    let calls = if calls < LINKS { calls } else { LINKS };
    // The call's frame is that of the last event, whose cell is the one before `start`, or that of one of its
    // callers. Old cells in between may hold other functions. In that case, a wrong call is linked for a
    // while, and after the next long search this loop gets further.
    let mut at = start - 8;
    while at < start + FAR {
        if let Some(cell) = existing(at) {
            let is_over = cell.return_address().load(Ordering::Relaxed) == at - 8;
            let callee = cell.function().load(Ordering::Relaxed);
            if is_over && link_calls(agent, block, callee, number, calls, TAILS) {
                return;
            }
        }
        at += 8;
    }
}

/// Links the calls of `callee` out of `caller`, if they have home slots, and of the functions that tail-call
/// `callee`, through at most `tails` tail calls, because a cell holds the last function that was tail-called
/// in its frame. Returns whether any of these calls was not linked before.
fn link_calls(agent: &Agent, block: BlockRef, callee: u32, caller: u32, calls: u64, tails: u32) -> bool {
    let (record, caller_record) = (agent.function(callee), agent.function(caller));
    let start = agent.bias.wrapping_add(caller_record.entry);
    let mut linked = false;
    let mut index = 0;
    while index < record.slot_count {
        let slot = slots::slot(block, record.slots + index * size_of::<Slot>() as u32);
        index += 1;
        let key = slot.key().load(Ordering::Relaxed);
        let tail_caller = if key & (CALLER | TAIL) == TAIL {
            Some((key & !TAIL) as u32)
        } else if key & (CALLER | TAIL | SITE) == SITE {
            agent.function_at(key & !SITE)
        } else {
            // A return address may be the address just past the function. A linked key is never in this
            // range.
            if key != 0 && key.wrapping_sub(start) <= caller_record.size.into() {
                slot.key().store(key | LINKED | calls << LINKS_SHIFT, Ordering::Relaxed);
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

/// Returns whether the slot's key is linked, so that the call that is being counted stores a link. This
/// decrements the number of calls in the key; after the last one, the slot has its plain key again. The slot
/// must be one with a key, in the calling thread's block.
pub(crate) fn is_next_linked(slot: SlotRef) -> bool {
    let key = slot.key().load(Ordering::Relaxed);
    if !is_linked(key) {
        return false;
    }
    let less = key.wrapping_sub(1 << LINKS_SHIFT);
    let next = if key >> LINKS_SHIFT & LINKS == 0 { plain_key(key) } else { less };
    slot.key().store(next, Ordering::Relaxed);
    true
}

/// Restores the slot's plain key, because the caller of a linked call was not found.
pub(crate) fn unlink(slot: SlotRef) {
    slot.key().store(plain_key(slot.key().load(Ordering::Relaxed)), Ordering::Relaxed);
}
