//! The slow paths for arcs that are not in their home slot: another key in the slot, an unhooked caller, a first
//! call.
#![allow(unsafe_code, reason = "a frame's return slot is written where its thunk has found it")]

use crate::hot::bare;
use crate::hot::callers;
use crate::hot::cells;
use crate::hot::nearest;
use crate::hot::next::Next;
use crate::hot::objects;
use crate::hot::own_stack;
use crate::hot::sharers;
use crate::hot::sites;
use crate::hot::slots::{self, Found};
use crate::hot::slow_stack;
use crate::hot::thread_blocks;
use crate::hot::threads;
use crate::hot::times;
use crate::os::task;
use crate::os::words;
use crate::program::agent::{Agent, LIBRARY_GATE_FACTS};
use crate::program::domain::Domain;
use crate::program::failure;
use crate::program::interned;
use crate::program::libraries;
use crate::program::provoke;
use crate::program::text;
use core::sync::atomic::{AtomicU32, Ordering};
use gprofinject_abi::plan::{ENTRY_ONLY, FunctionRecord, LOOPS, NEEDS_NO_CELL, STATE, TailRecord};
use gprofinject_abi::region::{CALLER, NO_FUNCTION, OWN, RETURN_ADDRESS, ROOT, SITE, TAIL, TWICE};
use gprofinject_abi::shared::CellRef;

/// The keys by which a call is counted, and the frame that its search for a caller has found.
struct Call {
    key: u64,
    /// The key in the program's own view, if the call has another caller there ([`OWN`]); otherwise 0.
    own: u64,
    /// Whether the newest live frame of the called function's set was looked for. (This and the next field are no
    /// `Option`, because copying one may use a vector register.)
    searched: bool,
    /// See [`Nearest::link`].
    link: u64,
}

impl Call {
    /// Returns the call with this return address as its key, before anything was looked for.
    fn by(return_address: u64) -> Call {
        // Two zeros side by side would be stored by a vector register. The link has no meaning before a search.
        Call { key: return_address, own: 0, searched: false, link: return_address }
    }
}

/// Counts an arc that already has a place. Integer code only; see [`crate::hot::gate`].
pub(crate) extern "C" fn known(number: u32, return_address: u64, cfa: u64) -> Next {
    let agent = Agent::get();
    let record = agent.function(number);
    if thread_blocks::are_words_shared() && sharers::is_time_to_settle() {
        return Next::RARE;
    }
    let Some(block) = thread_blocks::current(agent) else { return Next::RARE };
    let entry = Entry::of(agent, record, number, return_address, cfa);
    let both = keeps_cells(agent, number);
    // A site, or a key that has a place, is known to be unhooked. For other return addresses, a search finds out.
    let is_hooked = match entry {
        Entry::Loop => return Next::body(agent, number, record),
        Entry::Text => !both || !sites::is_site(return_address),
        Entry::Library => !sites::is_site(return_address),
        Entry::Callback if objects::known(return_address).is_none() => return Next::RARE,
        Entry::Tail(cell) if is_inside(agent, number, cells::function(cell, cfa, return_address)) => {
            return pass(agent, record, number, cell, cfa, return_address);
        }
        Entry::Callback | Entry::Tail(_) => false,
    };
    let mut call = Call::by(return_address);
    entry.find_caller(agent, number, return_address, cfa, is_hooked, &mut call);
    let slot = match slots::find(agent, block, number, record, call.key) {
        Found::At(slot) => slot,
        _ if is_of_made(entry, both, &call) && !has_room_for_made() => {
            call.key = ROOT;
            let Found::At(slot) = slots::find(agent, block, number, record, ROOT) else { return Next::RARE };
            slot
        }
        _ => return Next::RARE,
    };
    if call.own != 0 {
        let Found::At(own) = slots::find(agent, block, number, record, call.own) else { return Next::RARE };
        slots::increment(own);
        // Only the way from a site in the gate looks for this key.
        slots::remember(block, number, call.own, own);
    }
    slots::increment(slot);
    let site = match entry {
        // A key of its own is found without a site.
        Entry::Callback if call.key == return_address => true,
        Entry::Callback => sites::note(agent, return_address),
        Entry::Library if is_hooked => sites::note_library(agent, return_address),
        Entry::Text | Entry::Library => call.searched,
        Entry::Tail(_) | Entry::Loop => false,
    };
    if site || entry.is_simple(record, number) {
        slots::remember(block, number, call.key, slot);
    }
    entry.next(agent, record, number, return_address, cfa, &call)
}

/// The number of arcs out of code that was made at run time that have got a place in some thread's counters. A program can make code at any
/// number of addresses, so what exceeds [`MADE_MAX`] counts as called by nobody known.
static MADE: AtomicU32 = AtomicU32::new(0);
const MADE_MAX: u32 = 1 << 16;

fn has_room_for_made() -> bool {
    MADE.load(Ordering::Relaxed) < MADE_MAX
}

/// Returns whether the key of a call is the return address in code that was made at run time.
fn is_of_made(entry: Entry, both: bool, call: &Call) -> bool {
    matches!(entry, Entry::Callback) && !both && call.key != ROOT
}

/// Returns whether a return address is a usual one, to which a call returns.
fn is_plain(agent: &Agent, return_address: u64) -> bool {
    return_address != 0
        && return_address <= RETURN_ADDRESS
        && !agent.is_restorer(return_address)
        && !agent.is_start_of_context(return_address)
}

/// Returns whether shadow stacks are kept for the set of functions to which this one belongs.
fn keeps_cells(agent: &Agent, number: u32) -> bool {
    match Domain::of(number) {
        Domain::Program => agent.both,
        Domain::Libraries => libraries::both(),
    }
}

/// Counts any arc: first gives the thread its thread block and the arc its place. That takes microseconds, which are in no measured
/// duration.
pub(crate) extern "C" fn rare(number: u32, return_address: u64, cfa: u64) -> Next {
    times::calls::leave_out(|| {
        failure::guarded(|| counted(number, return_address, cfa))
            .unwrap_or_else(|| uncounted(number, return_address, cfa))
    })
}

/// Continues without counting, because the agent's code has panicked. No code here may panic.
fn uncounted(number: u32, return_address: u64, cfa: u64) -> Next {
    let agent = Agent::get();
    let record = agent.function(number);
    // If the process has one thread, no call takes this path any more once the text is restored.
    text::restore(agent);
    match Entry::of(agent, record, number, return_address, cfa) {
        Entry::Loop => Next::body(agent, number, record),
        // Code that was made at run time may look its own return address up.
        Entry::Callback
            if record.flags & ENTRY_ONLY == 0 && objects::known(return_address) != Some(false) =>
        {
            Next::body(agent, number, record)
        }
        entry => entry.next(agent, record, number, return_address, cfa, &Call::by(return_address)),
    }
}

fn counted(number: u32, return_address: u64, cfa: u64) -> Next {
    provoke::at(provoke::Place::Rare);
    if thread_blocks::are_words_shared() {
        sharers::settle();
    }
    let agent = Agent::get();
    let record = agent.function(number);
    let entry = Entry::of(agent, record, number, return_address, cfa);
    let both = keeps_cells(agent, number);
    let is_hooked = match entry {
        Entry::Loop => return Next::body(agent, number, record),
        Entry::Text => !both || is_hooked(agent, return_address),
        Entry::Library => is_hooked(agent, return_address),
        Entry::Callback => {
            objects::is_made_at_run_time(return_address);
            false
        }
        Entry::Tail(cell) if is_inside(agent, number, cells::function(cell, cfa, return_address)) => {
            return pass(agent, record, number, cell, cfa, return_address);
        }
        Entry::Tail(_) => false,
    };
    if matches!(entry, Entry::Text | Entry::Library) && !is_hooked {
        sites::note(agent, return_address);
    }
    let mut call = Call::by(return_address);
    entry.find_caller(agent, number, return_address, cfa, is_hooked, &mut call);
    if is_of_made(entry, both, &call) {
        if has_room_for_made() {
            MADE.fetch_add(1, Ordering::Relaxed);
        } else {
            call.key = ROOT;
        }
    }
    let first_frame = words::get().first_frame();
    if first_frame.load(Ordering::Relaxed) == 0 {
        first_frame.store(cfa, Ordering::Relaxed);
        own_stack::find(agent);
        callers::begin_thread(cfa);
    }
    if agent.counts_nowhere {
        text::restore(agent);
    }
    if agent.small_stacks {
        slow_stack::make();
    }
    match threads::block(agent) {
        Some(block) => {
            slots::count(agent, block, number, record, call.key);
            if call.own != 0 {
                slots::count(agent, block, number, record, call.own);
            }
        }
        // These calls are not reported as lost.
        None if agent.counts_nowhere => {}
        None => {
            agent.region.lost_calls().fetch_add(1, Ordering::Relaxed);
        }
    }
    entry.next(agent, record, number, return_address, cfa, &call)
}

/// Returns whether a return address in the text of the program or of a library lies in code of a hooked function.
fn is_hooked(agent: &Agent, return_address: u64) -> bool {
    if agent.program.in_text(return_address) {
        return agent.program.is_hooked(return_address);
    }
    libraries::with_return(return_address).is_some_and(|library| library.is_hooked(return_address))
}

/// How a function was entered.
#[derive(Clone, Copy)]
enum Entry {
    /// By a call from the program's text. If the function belongs to a library, or if no shadow stack is kept for the
    /// program, also by one from the text of a library that is hooked: in the latter case the call has no caller in the
    /// program's own view, as the injector sees from its key.
    Text,
    /// A function of the program for which a shadow stack is kept, by a call from the text of a library that is hooked.
    Library,
    /// By a call from other code.
    Callback,
    /// By a jump from a hooked function, whose exit label the return slot contains. The callee takes over the frame
    /// and this cell.
    Tail(CellRef),
    /// By a jump through the function's own jump table back to its first instruction.
    Loop,
}

impl Entry {
    fn of(agent: &Agent, record: &FunctionRecord, number: u32, return_address: u64, cfa: u64) -> Entry {
        if agent.program.in_text(return_address) {
            return Entry::Text;
        }
        match cells::existing(cfa) {
            Some(cell) if agent.in_thunks(return_address) => {
                let same = cells::function(cell, cfa, return_address) == number;
                if same && record.flags & LOOPS != 0 { Entry::Loop } else { Entry::Tail(cell) }
            }
            _ if libraries::with_return(return_address).is_none() => Entry::Callback,
            _ if agent.both && Domain::of(number) == Domain::Program => Entry::Library,
            _ => Entry::Text,
        }
    }

    /// Finds the keys of the call. `is_hooked` is whether its return address lies in hooked code; then `call` already has
    /// the right key for the view of the whole process.
    fn find_caller(
        self,
        agent: &Agent,
        number: u32,
        return_address: u64,
        cfa: u64,
        is_hooked: bool,
        call: &mut Call,
    ) {
        let domain = Domain::of(number);
        match self {
            Entry::Text if is_hooked => return,
            Entry::Tail(cell) => {
                let left = cells::function(cell, cfa, return_address);
                call.key = TAIL | u64::from(left);
                if domain == Domain::Libraries || Domain::of(left) == Domain::Program {
                    return;
                }
                // A library's function jumps to the program's. If the program's function that had left the frame to the
                // library can be recognised by its exit label, it is the caller in the program's own view.
                if agent.program.in_arena(return_address)
                    && let Some(own) = agent.program.function_of_label(return_address)
                {
                    call.own = OWN | TAIL | u64::from(own);
                    return;
                }
                // If the library's function was called from the program, that call is the program's own arc.
                let called_from = cell.return_address().load(Ordering::Relaxed);
                if agent.program.in_text(called_from) && agent.program.is_hooked(called_from) {
                    call.own = OWN | called_from;
                    return;
                }
                let found = callers::nearest(agent, domain, 0, cfa);
                call.own = OWN | CALLER | u64::from(found.function.unwrap_or(NO_FUNCTION));
                return;
            }
            _ => {}
        }
        if !keeps_cells(agent, number) {
            // Code that was made at run time is known by its address alone, and the process may say which function that is.
            let is_made = matches!(self, Entry::Callback) && objects::known(return_address) == Some(true);
            if !is_made || !is_plain(agent, return_address) {
                call.key = ROOT;
            }
            return;
        }
        let found = callers::nearest(agent, domain, return_address, cfa);
        if domain == Domain::Program {
            bare::end_at(cfa);
        }
        call.searched = true;
        call.link = found.link;
        let own = found.function;
        if is_hooked {
            call.key = TWICE | return_address;
        } else {
            let newest = callers::newest(agent, domain, return_address, cfa, found);
            call.key = newest.map_or(ROOT, |number| CALLER | u64::from(number));
            if domain == Domain::Libraries || newest == own {
                return;
            }
        }
        call.own = OWN | CALLER | u64::from(own.unwrap_or(NO_FUNCTION));
    }

    /// Returns whether a later entry of this kind with the same key can be counted as soon as its key is found,
    /// without another check of the frame. (For a callback that returns to a known site, the assembly in
    /// [`crate::hot::gate`] checks the frame itself, and does not use this.)
    fn is_simple(self, record: &FunctionRecord, number: u32) -> bool {
        match self {
            Entry::Text => true,
            Entry::Tail(cell) => {
                // If the frame changes from one set to the other, its return slot changes, too.
                let left = cell.function().load(Ordering::Relaxed);
                // So does it if one of the functions loops.
                let loops = (record.flags | Agent::get().function(left).flags) & LOOPS != 0;
                !loops && !needs_return_address(record) && Domain::of(left) == Domain::of(number)
            }
            Entry::Library | Entry::Callback | Entry::Loop => false,
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
        call: &Call,
    ) -> Next {
        let exits = record.flags & ENTRY_ONLY == 0;
        if exits && matches!(self, Entry::Callback) && objects::known(return_address) == Some(true) {
            return Next::body(agent, number, record);
        }
        if exits && call.searched {
            let link = nearest::link_between(call.link, cfa);
            let next = cells::fill(agent, record, cfa, number, return_address, link);
            if next.target != 0 {
                return next;
            }
            if record.is_for_callbacks() {
                return Next::outside(agent, number, record);
            }
        }
        if let Entry::Tail(cell) = self {
            let left = agent.function(cells::function(cell, cfa, return_address));
            // The exit label of a function that loops does not stay in a frame that is another function's.
            if needs_return_address(record) || !exits && left.flags & LOOPS != 0 {
                // The function may do anything with its return address, so it must find the original one: the frame
                // of the function that jumped ends here.
                let own = cells::take(cfa, return_address);
                // SAFETY: the frame's return slot is directly below its CFA, and the thunk has just read it. The
                // stack is the calling thread's own. The cell keeps the return address, so that a signal handler that
                // unwinds finds either of the two.
                unsafe { ((cfa - 8) as *mut u64).write_volatile(own) };
                return Next::resume(agent, number, record);
            }
            hand_over(agent, cell, number, exits, cfa, return_address);
            if exits {
                return Next::handed_over(agent, number, record);
            }
        }
        Next::resume(agent, number, record)
    }
}

/// Returns whether a jump out of the function `left` to the one with this number stays inside of a module of which only calls from outside
/// are counted.
fn is_inside(agent: &Agent, number: u32, left: u32) -> bool {
    let module = match Domain::of(number) {
        Domain::Program => Some(&agent.program),
        Domain::Libraries => libraries::of_function(number),
    };
    module.is_some_and(|module| {
        module.outermost && (left.wrapping_sub(module.first) as usize) < module.functions.len()
    })
}

/// Continues after such a jump. The frame stays that of the function that was called from outside, unless the exit label in its return
/// slot has to be another one.
fn pass(
    agent: &Agent,
    record: &FunctionRecord,
    number: u32,
    cell: CellRef,
    cfa: u64,
    return_address: u64,
) -> Next {
    let exits = record.flags & ENTRY_ONLY == 0;
    let left = agent.function(cells::function(cell, cfa, return_address));
    let loops = (record.flags | left.flags) & LOOPS != 0;
    if needs_return_address(record) || !exits && loops {
        return Entry::Tail(cell).next(agent, record, number, return_address, cfa, &Call::by(return_address));
    }
    if !exits {
        return Next::resume(agent, number, record);
    }
    if loops {
        hand_over(agent, cell, number, exits, cfa, return_address);
    }
    Next::body(agent, number, record)
}

/// Gives a frame to the function with this number, which was tail-called in it. `exits` is whether the function's exit is
/// hooked.
fn hand_over(agent: &Agent, cell: CellRef, number: u32, exits: bool, cfa: u64, return_address: u64) {
    let left = cells::function(cell, cfa, return_address);
    let domain = Domain::of(number);
    let record = agent.function(number);
    if Domain::of(left) == domain {
        cells::hand_over(cfa, return_address, number);
        if exits && (record.flags | agent.function(left).flags) & LOOPS != 0 {
            put_label(agent, number, record, cfa, return_address);
        }
        return;
    }
    if !exits {
        // A leaf calls nothing, so the frame can stay with the other set.
        return;
    }
    // The exit label of the function that leaves stays behind in the return slot, so that the program's own view can still
    // find it there if it is the program's. The link was one within the other set.
    put_label(agent, left, agent.function(left), cfa, return_address);
    cells::hand_over(cfa, return_address, number);
    cell.link().store(cell.link().load(Ordering::Relaxed) & STATE, Ordering::Relaxed);
    domain.last(words::get()).store(cfa, Ordering::Relaxed);
}

/// Writes the exit label of the function with this number, if it has one, to the return slot of a frame, which contains `present`.
/// An interned label stays, because it stands for the return address.
fn put_label(agent: &Agent, number: u32, record: &FunctionRecord, cfa: u64, present: u64) {
    if record.exit != 0 && interned::at(present).is_none() {
        let label = agent.base(number).wrapping_add(record.exit.into());
        // SAFETY: the frame's return slot is directly below its CFA, and the thunk has just read it. The stack is the
        // calling thread's own. All exit labels lead back through the cell.
        unsafe { ((cfa - 8) as *mut u64).write_volatile(label) };
    }
}

/// Returns whether the function has no exit hook because it uses its return address for more than a return. A leaf
/// has none either, but only returns by it.
fn needs_return_address(record: &FunctionRecord) -> bool {
    record.flags & (ENTRY_ONLY | NEEDS_NO_CELL) == ENTRY_ONLY
}

/// Assigns a tail call's own slot. Returns where to continue: at the tail call's thunk, which is run once more, or at
/// the called function's thunk, which counts in its own slots.
pub(crate) extern "C" fn tail(index: u32) -> u64 {
    let agent = Agent::get();
    let program = &agent.program;
    let Some(record) = program.tails.get(index as usize) else { task::sleep_for_ever() };
    slot_of_tail(agent, record, program.base)
}

/// The same for a jump in a library. `index` is that of the table of all libraries.
pub(crate) extern "C" fn library_tail(index: u32) -> u64 {
    let record = libraries::tail(index);
    slot_of_tail(Agent::get(), record, LIBRARY_GATE_FACTS.base.load(Ordering::Relaxed))
}

fn slot_of_tail(agent: &Agent, record: &TailRecord, base: u64) -> u64 {
    let slot = |block| slots::slot(block, record.slot);
    let take = |block| slots::take(agent, block, record.callee, slot(block), SITE | record.site);
    // The thunk leads to the body if the called function's own thunk would not know the function that jumps.
    let is_counted_here = record.thunk == agent.function(record.callee).body;
    let take = || failure::guarded(|| threads::block(agent).filter(|&block| take(block))).flatten();
    if thread_blocks::are_words_shared() {
        // The jump's thunk would not find the slot, however often it runs.
        let taken = if is_counted_here { take() } else { None };
        match taken {
            Some(block) => slots::increment(slot(block)),
            None if is_counted_here && !agent.counts_nowhere => {
                agent.region.lost_calls().fetch_add(1, Ordering::Relaxed);
            }
            None => {}
        }
        return base.wrapping_add(record.thunk.into());
    }
    let ready = take().is_some();
    if !ready && is_counted_here && !agent.counts_nowhere {
        agent.region.lost_calls().fetch_add(1, Ordering::Relaxed);
    }
    base.wrapping_add(if ready { record.again } else { record.thunk }.into())
}
