//! Arcs that are not at home: another key in the home slot, a caller that is not hooked, a first call.
#![allow(unsafe_code)]

use crate::agent::{Agent, add};
use crate::callers::{self, Nearest};
use crate::cells;
use crate::far;
use crate::gate::{BODY, CALL, Next, RESUME};
use crate::objects;
use crate::text;
use crate::threads;
use crate::words;
use core::arch::asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::plan::{CALL_LEN, Cell, ENTRY_ONLY, FunctionRecord, LEAF, LOOPS, SPARE_SLOTS};
use gprofinject_abi::region::{
    BlockHeader, CALLER, Overflow, PROBES, ROOT, SEGMENT_BIT, SEGMENTS, SITE, SLOTS, Slot, TAIL, is_linked,
    plain_key, recent, segment_entries, segment_offset,
};

/// Counts an arc that has a place already. `base` is the caller's rbp. Integer code only; see [`crate::gate`].
pub(crate) extern "C" fn known(number: u32, return_address: u64, cfa: u64, base: u64) -> Next {
    let agent = Agent::get();
    let record = agent.function(number);
    // SAFETY: the calling thread's own words.
    let block = unsafe { (*words::get()).block };
    if block == agent.no_block || block == agent.lost_block {
        return RARE;
    }
    let entry = Entry::of(agent, record, number, return_address, cfa);
    let mut nearest = None;
    let key = match entry {
        Entry::Loop => return body(agent, record),
        // Whether the caller is hooked is known of sites and of keys that have a place. Of others it costs a search.
        Entry::Text if agent.both && callers::is_site(return_address) => {
            caller(agent, return_address, cfa, &mut nearest)
        }
        Entry::Text => return_address,
        Entry::Callback if agent.both && objects::known(return_address).is_none() => return RARE,
        Entry::Callback => caller(agent, return_address, cfa, &mut nearest),
        Entry::Tail(cell) => tail_key(cell),
    };
    match find(agent, block, number, record, key) {
        Found::At(count) => {
            // SAFETY: a count in the thread's own block.
            unsafe { increment(count) };
            let site = match entry {
                Entry::Callback => callers::note_site(agent, return_address),
                Entry::Text => nearest.is_some(),
                _ => false,
            };
            let slot = count.cast::<u8>().wrapping_sub(offset_of!(Slot, count)).cast();
            // SAFETY: the count is one of a slot or an overflow entry, which begin alike, in the block.
            if unsafe { far::is_next_linked(slot) } {
                nearest = far::caller(agent, number, return_address, cfa, base);
                if nearest.is_none() {
                    // SAFETY: as above.
                    unsafe { far::unlink(slot) };
                }
                return entry.next(agent, record, number, return_address, cfa, nearest);
            }
            if site || entry.is_simple(record) {
                // SAFETY: the count is in the block.
                unsafe { remember(block, number, key, count) };
            }
            entry.next(agent, record, number, return_address, cfa, nearest)
        }
        _ => RARE,
    }
}

const RARE: Next = Next { target: 0, way: RESUME };

/// Counts any arc: gives the thread its block and the arc its place first.
pub(crate) extern "C" fn rare(number: u32, return_address: u64, cfa: u64) -> Next {
    let agent = Agent::get();
    let record = agent.function(number);
    let entry = Entry::of(agent, record, number, return_address, cfa);
    let mut nearest = None;
    let key = match entry {
        Entry::Loop => return body(agent, record),
        Entry::Text if agent.both && !agent.is_hooked(return_address) => {
            callers::note_site(agent, return_address);
            caller(agent, return_address, cfa, &mut nearest)
        }
        Entry::Text => return_address,
        Entry::Callback => {
            objects::is_made_at_run_time(return_address);
            caller(agent, return_address, cfa, &mut nearest)
        }
        Entry::Tail(cell) => tail_key(cell),
    };
    // SAFETY: the thread's own words.
    unsafe {
        let words = words::get();
        if (*words).first_frame == 0 {
            (*words).first_frame = cfa;
            callers::find_own_stack(agent);
        }
    }
    if agent.counts_nowhere {
        text::restore(agent);
    }
    match threads::block(agent) {
        Some(block) => count(agent, block, number, record, key),
        // Nobody misses them.
        None if agent.counts_nowhere => {}
        // SAFETY: the region header stays mapped.
        None => unsafe {
            add(&raw mut (*agent.header()).lost_calls, 1);
        },
    }
    entry.next(agent, record, number, return_address, cfa, nearest)
}

/// How a function was entered.
#[derive(Clone, Copy)]
enum Entry {
    /// By a call from the program's text.
    Text,
    /// From code that is not the program's.
    Callback,
    /// By a jump from a hooked function, whose exit label the return slot holds. The frame, and this
    /// cell of it, go on as the callee's.
    Tail(*mut Cell),
    /// A jump table of the function led back to its first instruction.
    Loop,
}

impl Entry {
    fn of(agent: &Agent, record: &FunctionRecord, number: u32, return_address: u64, cfa: u64) -> Entry {
        if agent.in_text(return_address) {
            return Entry::Text;
        }
        match cells::existing(cfa) {
            Some(cell) if agent.in_arena(return_address) => {
                // SAFETY: the frame's own cell.
                let same = unsafe { (*cell).function } == number;
                if same && record.flags & LOOPS != 0 { Entry::Loop } else { Entry::Tail(cell) }
            }
            _ => Entry::Callback,
        }
    }

    /// Whether a later entry of this kind with the same key can be counted as soon as its key is found, without another
    /// look at the frame. (For a callback that returns to a known site, the assembly in [`crate::gate`] looks at the frame
    /// itself, and does not use this.)
    fn is_simple(self, record: &FunctionRecord) -> bool {
        match self {
            Entry::Text => true,
            Entry::Tail(_) => !needs_return_address(record),
            Entry::Callback | Entry::Loop => false,
        }
    }

    /// Where the thunk goes on, once the arc is counted.
    fn next(
        self,
        agent: &Agent,
        record: &FunctionRecord,
        number: u32,
        return_address: u64,
        cfa: u64,
        nearest: Option<Nearest>,
    ) -> Next {
        let exits = record.flags & ENTRY_ONLY == 0;
        if exits && matches!(self, Entry::Callback) && objects::known(return_address) == Some(true) {
            return body(agent, record);
        }
        if let Some(nearest) = nearest.filter(|_| exits)
            && cells::fill(cfa, number, return_address, nearest)
        {
            let call = u64::from(record.exit - CALL_LEN);
            return Next { target: agent.arena_lo.wrapping_add(call), way: CALL };
        }
        if let Entry::Tail(cell) = self {
            if needs_return_address(record) {
                // The function may do anything with its return address, so it must find the true one: the frame of
                // the function that jumped ends here.
                // SAFETY: the frame's own cell, and its return slot, which the thunk has just read.
                unsafe {
                    *((cfa - 8) as *mut u64) = (*cell).return_address;
                    (*cell).return_address = 0;
                }
                return Next { target: agent.arena_lo.wrapping_add(record.resume.into()), way: RESUME };
            }
            // SAFETY: the frame's own cell.
            unsafe { (*cell).function = number };
            if exits {
                return body(agent, record);
            }
        }
        Next { target: agent.arena_lo.wrapping_add(record.resume.into()), way: RESUME }
    }
}

/// Whether the function has no exit hook because it uses its return address in a way of its own. A leaf has none either,
/// but does nothing with it except to return.
fn needs_return_address(record: &FunctionRecord) -> bool {
    record.flags & (ENTRY_ONLY | LEAF) == ENTRY_ONLY
}

/// Puts an arc into the thread's table of recent arcs. The assembly between thunks and this module ([`crate::gate`]) looks
/// into that table before it calls [`known`]. The arc is written with one store, because a signal handler that interrupts
/// this thread may write to the same place.
///
/// # Safety
/// `count` must be the count of a slot or overflow entry in `block`, the calling thread's.
unsafe fn remember(block: u64, number: u32, key: u64, count: *mut u64) {
    let slot = count as u64 - offset_of!(Slot, count) as u64 - block;
    let word = slot | u64::from(number + 1) << 32;
    // SAFETY: the table is part of the block, in its first chunk, which is committed.
    unsafe { AtomicU64::from_ptr((block + recent(key, number)) as *mut u64) }.store(word, Ordering::Relaxed);
}

fn tail_key(cell: *const Cell) -> u64 {
    // SAFETY: the cell of the frame that is being handed over.
    TAIL | u64::from(unsafe { (*cell).function })
}

/// The key of a call out of code that is not hooked: the newest hooked frame, else the root. Puts what was found into
/// `nearest`, if cells are kept.
fn caller(agent: &Agent, return_address: u64, cfa: u64, nearest: &mut Option<Nearest>) -> u64 {
    if !agent.both {
        return ROOT;
    }
    let found = callers::nearest(agent, return_address, cfa);
    *nearest = Some(found);
    match found.function {
        Some(number) => CALLER | u64::from(number),
        None => ROOT,
    }
}

pub(crate) fn body(agent: &Agent, record: &FunctionRecord) -> Next {
    Next { target: agent.arena_lo.wrapping_add(record.body.into()), way: BODY }
}

/// One more, in one instruction: a signal handler of this thread may count the same arc in between.
///
/// # Safety
/// `count` must point into the calling thread's block.
unsafe fn increment(count: *mut u64) {
    // SAFETY: passed on.
    unsafe { asm!("inc qword ptr [{}]", in(reg) count, options(nostack)) };
}

/// Where an arc is, or could be put. All places are in the calling thread's block.
enum Found {
    /// Its count.
    At(*mut u64),
    /// A free home slot.
    Home(*mut Slot),
    /// A free entry of an overflow segment.
    Over(usize, *mut Overflow),
    Nowhere,
}

/// Looks an arc up. A free place can be named before it is committed: reading there yields zeros.
fn find(agent: &Agent, block: u64, number: u32, record: &FunctionRecord, key: u64) -> Found {
    let mut at = (key as u32).wrapping_mul(record.multiplier) >> (record.shift & 31) & record.mask;
    let last = if record.mask == 0 { at } else { at + SPARE_SLOTS * size_of::<Slot>() as u32 };
    while at <= last {
        let slot = (block + u64::from(record.slots + at)) as *mut Slot;
        // SAFETY: the home slots of a function lie within the block.
        let found = unsafe { (*slot).key };
        if found == key || is_linked(found) && plain_key(found) == key {
            // SAFETY: the slot is valid.
            return Found::At(unsafe { &raw mut (*slot).count });
        }
        if found == 0 {
            return Found::Home(slot);
        }
        at += size_of::<Slot>() as u32;
    }
    overflow(agent, block, number, key)
}

fn overflow(agent: &Agent, block: u64, number: u32, key: u64) -> Found {
    let hash =
        (key ^ (u64::from(number) << 32 | u64::from(number))).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let mut segment = 0;
    while segment < SEGMENTS {
        let base = block + segment_offset(agent.slot_bytes, segment);
        let mask = segment_entries(segment) - 1;
        let mut probe = 0;
        while probe < PROBES {
            let index = (hash as usize + probe) & mask;
            let entry = (base + (index * size_of::<Overflow>()) as u64) as *mut Overflow;
            // SAFETY: the segments lie within the block.
            let found = unsafe { &*entry };
            if found.key == key && found.function == number {
                // SAFETY: the entry is valid.
                return Found::At(unsafe { &raw mut (*entry).count });
            }
            if found.key == 0 {
                return Found::Over(segment, entry);
            }
            probe += 1;
        }
        segment += 1;
    }
    Found::Nowhere
}

fn count(agent: &Agent, block: u64, number: u32, record: &FunctionRecord, key: u64) {
    // A signal handler may take the free place first; then it is looked for again.
    for _ in 0..64 {
        match find(agent, block, number, record, key) {
            Found::At(count) => {
                // SAFETY: a count in the thread's own block.
                unsafe { increment(count) };
                return;
            }
            Found::Home(slot) => {
                if !take(agent, block, slot, key) {
                    break;
                }
            }
            Found::Over(segment, entry) => {
                let at = segment_offset(agent.slot_bytes, segment);
                let len = gprofinject_abi::region::segment_len(segment);
                if !threads::commit(block, SEGMENT_BIT + segment as u32, at, len) {
                    break;
                }
                // The function is stored first, so that a reader who finds the key finds the function, too. An entry
                // that a handler took in between keeps the handler's function, and the key decides.
                // SAFETY: an entry in the thread's own block; this thread is the only writer.
                unsafe {
                    if AtomicU64::from_ptr(&raw mut (*entry).key)
                        .compare_exchange(0, TAKEN, Ordering::Relaxed, Ordering::Relaxed)
                        .is_ok()
                    {
                        (*entry).function = number;
                        AtomicU64::from_ptr(&raw mut (*entry).key).store(key, Ordering::Release);
                    }
                }
            }
            Found::Nowhere => break,
        }
    }
    // SAFETY: the block header is part of the thread's block, committed with its first chunk.
    unsafe { add(&raw mut (*(block as *mut BlockHeader)).lost_calls, 1) };
    // SAFETY: the region header stays mapped.
    unsafe { add(&raw mut (*agent.header()).lost_calls, 1) };
}

/// Puts a free slot into use, unless a signal handler does so first. False: it cannot be made lasting.
fn take(agent: &Agent, block: u64, slot: *mut Slot, key: u64) -> bool {
    let chunk = (slot as u64 - block) / agent.slot_chunk;
    if !threads::commit(block, chunk as u32, chunk * agent.slot_chunk, chunk_len(agent, chunk)) {
        return false;
    }
    // SAFETY: an aligned key in the thread's own block.
    let free = unsafe { AtomicU64::from_ptr(&raw mut (*slot).key) };
    let _ = free.compare_exchange(0, key, Ordering::Release, Ordering::Relaxed);
    true
}

/// A tail call's own slot is to be put into use: answers with where to go on, the tail call's thunk once
/// more, or the called function's, which counts in its own way.
pub(crate) extern "C" fn tail(index: u32) -> u64 {
    let agent = Agent::get();
    let record = agent.tail(index);
    let ready = threads::block(agent).is_some_and(|block| {
        let slot = (block + u64::from(record.slot)) as *mut Slot;
        take(agent, block, slot, SITE | record.site)
    });
    agent.arena_lo.wrapping_add(if ready { record.again } else { record.thunk }.into())
}

/// Key of an overflow entry whose function is being stored.
const TAKEN: u64 = 1;

/// The last chunk ends where the overflow segments begin.
fn chunk_len(agent: &Agent, chunk: u64) -> u64 {
    let end = segment_offset(agent.slot_bytes, 0);
    let at = chunk * agent.slot_chunk;
    if at + agent.slot_chunk > end { end - at } else { agent.slot_chunk }
}

const _: () = assert!(SLOTS as usize >= size_of::<BlockHeader>());
