//! The slow paths for arcs that are not in their home slot: another key in the slot, an unhooked caller, a first
//! call.
#![allow(unsafe_code, reason = "a frame's return slot is written where its thunk has found it")]

use crate::hot::callers;
use crate::hot::cells;
use crate::hot::far;
use crate::hot::links;
use crate::hot::nearest::Nearest;
use crate::hot::next::Next;
use crate::hot::objects;
use crate::hot::own_stack;
use crate::hot::sites;
use crate::hot::slots::{self, Found};
use crate::hot::threads;
use crate::os::words;
use crate::program::agent::Agent;
use crate::program::failure;
use crate::program::provoke;
use crate::program::text;
use core::sync::atomic::Ordering;
use gprofinject_abi::plan::{ENTRY_ONLY, FunctionRecord, LEAF, LOOPS};
use gprofinject_abi::region::{CALLER, ROOT, SITE, TAIL};
use gprofinject_abi::shared::CellRef;

/// Counts an arc that already has a place. `base` is the caller's rbp. Integer code only; see [`crate::hot::gate`].
pub(crate) extern "C" fn known(number: u32, return_address: u64, cfa: u64, base: u64) -> Next {
    let agent = Agent::get();
    let record = agent.function(number);
    let Some(block) = threads::existing(agent) else { return Next::RARE };
    let entry = Entry::of(agent, record, number, return_address, cfa);
    let mut nearest = None;
    let key = match entry {
        Entry::Loop => return Next::body(agent, record),
        // A site, or a key that has a place, is known to be unhooked. For other return addresses, a search finds out.
        Entry::Text if agent.both && sites::is_site(return_address) => {
            caller(agent, return_address, cfa, &mut nearest)
        }
        Entry::Text => return_address,
        Entry::Callback if agent.both && objects::known(return_address).is_none() => return Next::RARE,
        Entry::Callback => caller(agent, return_address, cfa, &mut nearest),
        Entry::Tail(cell) => tail_key(cell),
    };
    let Found::At(slot) = slots::find(agent, block, number, record, key) else { return Next::RARE };
    slots::increment(slot);
    let site = match entry {
        Entry::Callback => sites::note(agent, return_address),
        Entry::Text => nearest.is_some(),
        _ => false,
    };
    if links::is_next_linked(slot) {
        nearest = far::caller(agent, number, return_address, cfa, base);
        if nearest.is_none() {
            links::unlink(slot);
        }
    } else if site || entry.is_simple(record) {
        slots::remember(block, number, key, slot);
    }
    entry.next(agent, record, number, return_address, cfa, nearest)
}

/// Counts any arc: first gives the thread its thread block and the arc its place.
pub(crate) extern "C" fn rare(number: u32, return_address: u64, cfa: u64) -> Next {
    failure::guarded(|| counted(number, return_address, cfa))
        .unwrap_or_else(|| uncounted(number, return_address, cfa))
}

/// Continues without counting, because the agent's code has panicked. No code here may panic.
fn uncounted(number: u32, return_address: u64, cfa: u64) -> Next {
    let agent = Agent::get();
    let record = agent.function(number);
    // If the process has one thread, no call takes this path any more once the text is restored.
    text::restore(agent);
    match Entry::of(agent, record, number, return_address, cfa) {
        Entry::Loop => Next::body(agent, record),
        // Code that was made at run time may look its own return address up.
        Entry::Callback
            if record.flags & ENTRY_ONLY == 0 && objects::known(return_address) != Some(false) =>
        {
            Next::body(agent, record)
        }
        entry => entry.next(agent, record, number, return_address, cfa, None),
    }
}

fn counted(number: u32, return_address: u64, cfa: u64) -> Next {
    provoke::at(provoke::Place::Rare);
    let agent = Agent::get();
    let record = agent.function(number);
    let entry = Entry::of(agent, record, number, return_address, cfa);
    let mut nearest = None;
    let key = match entry {
        Entry::Loop => return Next::body(agent, record),
        Entry::Text if agent.both && !agent.is_hooked(return_address) => {
            sites::note(agent, return_address);
            caller(agent, return_address, cfa, &mut nearest)
        }
        Entry::Text => return_address,
        Entry::Callback => {
            objects::is_made_at_run_time(return_address);
            caller(agent, return_address, cfa, &mut nearest)
        }
        Entry::Tail(cell) => tail_key(cell),
    };
    let first_frame = words::get().first_frame();
    if first_frame.load(Ordering::Relaxed) == 0 {
        first_frame.store(cfa, Ordering::Relaxed);
        own_stack::find(agent);
    }
    if agent.counts_nowhere {
        text::restore(agent);
    }
    match threads::block(agent) {
        Some(block) => slots::count(agent, block, number, record, key),
        // These calls are not reported as lost.
        None if agent.counts_nowhere => {}
        None => {
            agent.region.lost_calls().fetch_add(1, Ordering::Relaxed);
        }
    }
    entry.next(agent, record, number, return_address, cfa, nearest)
}

/// How a function was entered.
#[derive(Clone, Copy)]
enum Entry {
    /// By a call from the program's text.
    Text,
    /// By a call from code outside the program's text.
    Callback,
    /// By a jump from a hooked function, whose exit label the return slot contains. The callee takes over the frame
    /// and this cell.
    Tail(CellRef),
    /// By a jump through the function's own jump table back to its first instruction.
    Loop,
}

impl Entry {
    fn of(agent: &Agent, record: &FunctionRecord, number: u32, return_address: u64, cfa: u64) -> Entry {
        if agent.in_text(return_address) {
            return Entry::Text;
        }
        match cells::existing(cfa) {
            Some(cell) if agent.in_arena(return_address) => {
                let same = cell.function().load(Ordering::Relaxed) == number;
                if same && record.flags & LOOPS != 0 { Entry::Loop } else { Entry::Tail(cell) }
            }
            _ => Entry::Callback,
        }
    }

    /// Returns whether a later entry of this kind with the same key can be counted as soon as its key is found,
    /// without another check of the frame. (For a callback that returns to a known site, the assembly in
    /// [`crate::hot::gate`] checks the frame itself, and does not use this.)
    fn is_simple(self, record: &FunctionRecord) -> bool {
        match self {
            Entry::Text => true,
            Entry::Tail(_) => !needs_return_address(record),
            Entry::Callback | Entry::Loop => false,
        }
    }

    /// Returns where the thunk continues once the arc is counted.
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
            return Next::body(agent, record);
        }
        if let Some(nearest) = nearest.filter(|_| exits)
            && cells::fill(cfa, number, return_address, nearest.link_from(cfa))
        {
            return Next::call(agent, record);
        }
        if let Entry::Tail(cell) = self {
            if needs_return_address(record) {
                // The function may do anything with its return address, so it must find the original one: the frame
                // of the function that jumped ends here.
                let own = cell.return_address().load(Ordering::Relaxed);
                // SAFETY: the frame's return slot is directly below its CFA, and the thunk has just read it. The
                // stack is the calling thread's own. The cell is freed afterwards, so that a signal handler that
                // unwinds finds either of the two.
                unsafe { ((cfa - 8) as *mut u64).write_volatile(own) };
                cell.return_address().store(0, Ordering::Relaxed);
                return Next::resume(agent, record);
            }
            cell.function().store(number, Ordering::Relaxed);
            if exits {
                return Next::body(agent, record);
            }
        }
        Next::resume(agent, record)
    }
}

/// Returns whether the function has no exit hook because it uses its return address for more than a return. A leaf
/// has none either, but only returns by it.
fn needs_return_address(record: &FunctionRecord) -> bool {
    record.flags & (ENTRY_ONLY | LEAF) == ENTRY_ONLY
}

/// Returns the key of a call by a jump out of the function that the frame's cell names.
fn tail_key(cell: CellRef) -> u64 {
    TAIL | u64::from(cell.function().load(Ordering::Relaxed))
}

/// Returns the key of a call out of unhooked code: that of the newest hooked frame, or the root. Stores the frame
/// that was found in `nearest`, if cells are kept.
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

/// Assigns a tail call's own slot. Returns where to continue: at the tail call's thunk, which is run once more, or at
/// the called function's thunk, which counts in its own slots.
pub(crate) extern "C" fn tail(index: u32) -> u64 {
    let agent = Agent::get();
    let record = agent.tail(index);
    let take = |block| slots::take(agent, block, slots::slot(block, record.slot), SITE | record.site);
    let ready = failure::guarded(|| threads::block(agent).is_some_and(take)).unwrap_or(false);
    agent.arena_lo.wrapping_add(if ready { record.again } else { record.thunk }.into())
}
