//! Direct calls out of large frames, whose callers would otherwise be searched for repeatedly.
//!
//! A thunk does not record the frame from which a direct call comes. When such a call has returned and unhooked code
//! calls back next, [`crate::hot::callers`] searches the cells above for the caller. If the caller's frame is large,
//! that takes long, and it is repeated in a function that alternates direct calls and calls through unhooked code.
//! Therefore, after a long search, the home slots of the calls out of that function are *linked*: [`LINKED`] is set
//! in their keys. The thunk then does not find its key, and the call takes the path to `arcs::known`, which finds the
//! caller's frame while the caller's registers are still unchanged, and stores a link to it in the cell. From then on
//! the call is like one out of unhooked code: its return is an event, and no search is needed after it.
//!
//! A linked call costs about as much as ten others. Therefore a key contains the number of calls that are still to be
//! linked, which is proportional to the cost of the search. After these calls the key is restored, until the next
//! long search.
//!
//! Not every long search has such a cause. Code that was generated at run time calls functions that get no cell; the next search
//! after such a call begins at a frame that this function has called, and there is nothing to link. So looking for the calls to link takes no
//! longer than the search did, and where it was in vain, the next attempts for the same function are left out: one the first time, and twice as
//! many and one more each further time.
//!
//! `arcs::known` calls this code while vector registers still contain the program's values. Therefore nothing here
//! may use one; see [`crate::hot::gate`].

use crate::hot::cells::existing;
use crate::hot::slots;
use crate::hot::thread_blocks;
use crate::program::agent::Agent;
use crate::program::domain::Domain;
use crate::program::libraries;
use core::sync::atomic::{AtomicU32, Ordering};
use gprofinject_abi::plan::FREE;
use gprofinject_abi::region::{CALLER, LINKED, LINKS, LINKS_SHIFT, SITE, Slot, TAIL, is_linked, plain_key};
use gprofinject_abi::shared::{BlockRef, SlotRef};

/// A search of at least this many bytes of stack counts as long.
pub(crate) const FAR: u64 = 2048;
/// One call is linked for each this many bytes of stack that were searched.
const BYTES_PER_CALL: u64 = 128;

/// The maximum length of the chain of tail calls in one frame through which the called function is looked for.
const TAILS: u32 = 3;

/// One slot is examined for each this many bytes of stack that were searched.
const BYTES_PER_SLOT: u64 = 64;

/// The largest number of attempts that are left out.
const MOST_LEFT_OUT: u32 = 1023;

/// The number of places in [`ATTEMPTS`], a power of two.
const FUNCTIONS: usize = 256;

/// For the caller that a long search has found, by the low bits of its number: how many of the next attempts to link its calls are left out
/// (the lower half), and how many were left out the last time. Threads share this; if one overwrites what another has stored, an attempt is made or
/// left out, and neither changes a count.
static ATTEMPTS: [AtomicU32; FUNCTIONS] = [const { AtomicU32::new(0) }; FUNCTIONS];

/// Links the calls that may have caused a search that began at the cell of the CFA `start` and has found the frame of
/// function `number` at `caller`.
pub(crate) fn searched(agent: &Agent, start: u64, caller: u64, number: u32) {
    if caller.saturating_sub(start) < FAR {
        return;
    }
    let Some(block) = thread_blocks::current(agent) else { return };
    let attempts = &ATTEMPTS[number as usize % FUNCTIONS];
    let state = attempts.load(Ordering::Relaxed);
    if state & 0xffff != 0 {
        attempts.store(state - 1, Ordering::Relaxed);
        return;
    }
    let mut budget = (caller - start) / BYTES_PER_SLOT;
    let calls = (caller - start) / BYTES_PER_CALL;
    let calls = if calls < LINKS { calls } else { LINKS };
    // The frame is that of the last event, whose cell is the one before, or of one of the functions that had called
    // it. Old cells in between may name other functions: then a call is linked uselessly for a while, and the next long
    // search continues further up.
    let mut at = start - 8;
    while at < start + FAR && budget != 0 {
        if let Some(cell) = existing(at) {
            let is_over = cell.link().load(Ordering::Relaxed) >= FREE
                && cell.return_address().load(Ordering::Relaxed) != 0;
            let callee = cell.function().load(Ordering::Relaxed);
            if is_over && link_calls(agent, block, callee, number, calls, TAILS, &mut budget) {
                attempts.store(0, Ordering::Relaxed);
                return;
            }
        }
        at += 8;
    }
    let more = 2 * (state >> 16) + 1;
    let next = if more < MOST_LEFT_OUT { more } else { MOST_LEFT_OUT };
    attempts.store(next << 16 | next, Ordering::Relaxed);
}

/// Links the calls of `callee` out of `caller`, if they have home slots, and of the functions that tail-call
/// `callee`, through at most `tails` tail calls: a cell names the function that used its frame last. Examines at most `budget` slots. Returns
/// whether a call was not linked before.
fn link_calls(
    agent: &Agent,
    block: BlockRef,
    callee: u32,
    caller: u32,
    calls: u64,
    tails: u32,
    budget: &mut u64,
) -> bool {
    let (record, caller_record) = (agent.function(callee), agent.function(caller));
    // The records of libraries have runtime addresses.
    let bias = if Domain::of(caller) == Domain::Program { agent.program.bias } else { 0 };
    let start = bias.wrapping_add(caller_record.entry);
    let mut linked = false;
    let mut index = 0;
    while index < record.slot_count && *budget != 0 {
        *budget -= 1;
        let slot = slots::slot(block, record.slots + index * size_of::<Slot>() as u32);
        index += 1;
        let key = slot.key().load(Ordering::Relaxed);
        let tail_caller = if key & (CALLER | TAIL) == TAIL {
            Some((key & !TAIL) as u32)
        } else if key & (CALLER | TAIL | SITE) == SITE {
            match Domain::of(callee) {
                Domain::Program => agent.program.function_at(key & !SITE),
                Domain::Libraries => {
                    let library = libraries::of_function(callee);
                    library.and_then(|library| library.function_at(key & !SITE))
                }
            }
        } else {
            // A return address may be one byte after the function's end. A linked key is never in that range.
            if key != 0 && key.wrapping_sub(start) <= caller_record.size.into() {
                slot.key().store(key | LINKED | calls << LINKS_SHIFT, Ordering::Relaxed);
                linked = true;
            }
            None
        };
        if let Some(number) = tail_caller.filter(|&number| tails > 0 && number != callee) {
            linked |= link_calls(agent, block, number, caller, calls, tails - 1, budget);
        }
    }
    linked
}

/// Returns whether the slot's key is linked, so that the call that is being counted leaves a link. This uses up one
/// of the linked calls of the key; after the last one, the slot has its plain key again. The slot must have a key,
/// and be in the calling thread's thread block.
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

/// Restores the plain key, because the caller of such a call could not be found.
pub(crate) fn unlink(slot: SlotRef) {
    slot.key().store(plain_key(slot.key().load(Ordering::Relaxed)), Ordering::Relaxed);
}
