//! Counts the values of arguments and results: `gprofinject --values`, [`gprofinject_abi::tally`].
//!
//! The bodies of chosen functions begin with a call of a gate ([`gates`]), and so do the exits of functions whose results are wanted. The gate finds the
//! record of the function and the call site in a table of the thread, reads integers from registers, and increments the counts of
//! their slots. This module does the rest: it makes records, reads values that are not in integer registers, and finds slots for values
//! that have none ([`slots`]).
//!
//! If calls are measured too (`--times`, `--paths`), a record is of a function and of the open call that has made the call, which has a node of
//! the calling-context tree ([`crate::hot::times`]). Its gates come before those that measure, and continue there.
#![allow(unsafe_code, reason = "records are places in a thread block, and gates save registers on the stack")]

pub(crate) mod gates;
mod slots;

use crate::hot::cells;
use crate::hot::tally::slots::Seen;
use crate::hot::thread_blocks;
use crate::hot::times::values::Saved;
use crate::hot::times::{area, arguments, calls, forks, nodes, values};
use crate::os::{memory, words};
use crate::program::agent::Agent;
use crate::program::failure;
use crate::program::module::Module;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use gprofinject_abi::args::{
    CALL_MAX, FLOAT, Fetch, Fetches, INTEGERS, ON_STACK, Op, SCALAR, STRING, UNREADABLE, VECTOR,
};
use gprofinject_abi::plan::LIBRARIES;
use gprofinject_abi::region::NO_FUNCTION;
use gprofinject_abi::shared::{BlockRef, CallEntryRef, CallTallyRef, OpenCallRef, TallyRef, ValueTallyRef};
use gprofinject_abi::tally::{
    ALONE, AREA_MAX, CallEntry, CallerKind, ENTRIES, ENTRIES_MAX, ENTRIES_TAIL, GROUP_BYTES, GROUPS_FIRST,
    NOT_READ, OpenKey, REST_MAX, RESULT, ValueClass, ValueTally, entry_offset, slots_units, text_hash,
};
use gprofinject_abi::times::{Kind, UNIT};
use zerocopy::IntoBytes;

/// The address of a byte for each function number: [`RESULTS`] and [`ARGUMENTS`], if those of the function are kept.
pub(crate) static HAVE_VALUES: AtomicU64 = AtomicU64::new(0);
/// A bit of these bytes.
pub(crate) const RESULTS: u8 = 1;
/// A bit of these bytes.
pub(crate) const ARGUMENTS: u8 = 2;
/// The number of these bytes: libraries have as many function numbers as the program.
pub(crate) const NUMBERS: u64 = 2 * LIBRARIES as u64;

/// Reserves the bytes.
///
/// # Errors
/// Returns the error number (errno) of the failed system call.
pub(crate) fn prepare() -> Result<(), i32> {
    let at = memory::map_zeros(NUMBERS, memory::PROT_READ | memory::PROT_WRITE)?;
    HAVE_VALUES.store(at, Ordering::Relaxed);
    Ok(())
}

/// Sets the bytes of a module's functions whose values are kept, before the module's first hook is in place.
pub(crate) fn add(module: &Module) {
    let bytes = HAVE_VALUES.load(Ordering::Relaxed);
    let Some(fetches) = Fetches::read(module.fetches.as_bytes()).filter(|_| bytes != 0) else { return };
    for index in 0..module.functions.len() as u32 {
        let number = u64::from(module.first) + u64::from(index);
        let (arguments, results) = fetches.of(index);
        let bits = [(arguments, ARGUMENTS), (results, RESULTS)];
        let bits = bits.iter().filter(|(of, _)| !of.is_empty()).fold(0, |bits, (_, bit)| bits | bit);
        if number < NUMBERS && bits != 0 {
            // SAFETY: the byte lies in the mapping, which stays, and is accessed only by atomics and by the gates.
            let byte = unsafe { AtomicU8::from_ptr((bytes + number) as *mut u8) };
            byte.store(bits, Ordering::Relaxed);
        }
    }
}

fn has_results(number: u32) -> bool {
    let bytes = HAVE_VALUES.load(Ordering::Relaxed);
    if bytes == 0 || u64::from(number) >= NUMBERS {
        return false;
    }
    // SAFETY: as in `add`.
    let byte = unsafe { AtomicU8::from_ptr((bytes + u64::from(number)) as *mut u8) };
    byte.load(Ordering::Relaxed) & RESULTS != 0
}

/// Prepares a thread block whose former thread has ended for another thread: a gate may have been at work when it ended.
pub(crate) fn begin(block: BlockRef) {
    block.tally().busy().store(0, Ordering::Relaxed);
}

/// Which gate a call has come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    /// The start of a function with an exit, whose return slot has an exit label.
    Begin,
    /// The start of a function without one.
    Mark,
    /// The exit of a function.
    End,
    /// The start of a function whose call is measured.
    Open,
    /// The exit of a function whose call is the innermost measured one.
    Close,
    /// The exit of another one.
    Frame,
}

/// [`From::Begin`], for the gates.
pub(super) const BEGIN: u32 = 0;
/// [`From::Mark`], for the gates.
pub(super) const MARK: u32 = 1;
/// [`From::End`], for the gates.
pub(super) const END: u32 = 2;
/// [`From::Open`], for the gates.
pub(super) const OPEN: u32 = 3;
/// [`From::Close`], for the gates.
pub(super) const CLOSE: u32 = 4;
/// [`From::Frame`], for the gates.
pub(super) const FRAME: u32 = 5;

/// What the slow path knows of a call.
#[derive(Clone, Copy)]
struct Call<'a> {
    agent: &'a Agent,
    block: BlockRef,
    header: TallyRef,
    cfa: u64,
    saved: Saved,
    caller: Caller,
    /// Whether the call is that of a signal handler that has interrupted a gate or a slow path.
    is_nested: bool,
}

/// The caller of a call, as its record has it.
#[derive(Clone, Copy)]
enum Caller {
    /// The return address.
    Site(u64),
    /// The measured call, and the open call that makes it.
    Measured { open: OpenCallRef, outer: OpenCallRef },
    /// There was no room for the caller.
    Rest,
}

impl Caller {
    /// Returns the first word of the record's key.
    fn word(self) -> u64 {
        match self {
            Caller::Site(word) => word,
            Caller::Measured { outer, .. } => open_key(outer).word,
            Caller::Rest => 0,
        }
    }
}

/// Counts the values of a call for which a gate cannot do it. `number` is the function of the gate, and `integers` and `vectors` are the
/// addresses of the saved registers: see [`Saved`].
pub(super) extern "C" fn slowly(number: u32, cfa: u64, integers: u64, vectors: u64, from: u32) {
    let saved = Saved { integers, vectors };
    let from = match from {
        BEGIN => From::Begin,
        MARK => From::Mark,
        OPEN => From::Open,
        CLOSE => From::Close,
        FRAME => From::Frame,
        _ => From::End,
    };
    let count = |agent: &Agent, block: BlockRef| of_call(agent, block, number, cfa, saved, from);
    match from {
        From::Begin | From::End => in_thread(count),
        From::Mark | From::Close => working(count),
        From::Open => {
            calls::begin(number, cfa, integers, vectors);
            working(count);
        }
        // The innermost measured call is that of the frame only when the others have ended.
        From::Frame => calls::end_with(cfa, 0, saved, |agent, block| {
            count(agent, block);
        }),
    }
}

/// Does some work for the calling thread.
fn in_thread(work: impl FnOnce(&Agent, BlockRef) -> Option<()>) {
    failure::guarded(|| {
        let agent = Agent::get();
        let block = thread_blocks::current(agent)?;
        work(agent, block)
    });
}

/// Does some work for the calling thread, and excludes its duration from measured times.
fn working(work: impl FnOnce(&Agent, BlockRef) -> Option<()>) {
    if Agent::get().orders.tallies == ALONE { in_thread(work) } else { calls::pausing(work) }
}

/// Counts the values of a call.
fn of_call(agent: &Agent, block: BlockRef, number: u32, cfa: u64, saved: Saved, from: From) -> Option<()> {
    let header = block.tally();
    if forks::is_new_child(agent) {
        header.lost().fetch_add(1, Ordering::Relaxed);
        return None;
    }
    let busy = header.busy().load(Ordering::Relaxed);
    let is_nested = is_below(cfa, busy);
    if !is_nested {
        header.busy().store(cfa, Ordering::Relaxed);
    }
    let call = Call { agent, block, header, cfa, saved, caller: Caller::Rest, is_nested };
    call.count(number, from);
    if !is_nested {
        header.busy().store(0, Ordering::Relaxed);
    }
    Some(())
}

/// Finds a slot for a value that has none, or gives one to it. A gate at work calls this.
pub(super) extern "C" fn miss(tally: u64, value: u64) {
    working(|agent, block| {
        slots::add(agent, block, value_tally(tally)?, Seen { value, text: None }, false);
        Some(())
    });
}

/// Returns whether a frame belongs to a signal handler's call that has interrupted the gate with this stack pointer, if it is not 0. The frames of a
/// handler are below it, or on another stack.
fn is_below(cfa: u64, busy: u64) -> bool {
    let words = words::get();
    let own = words.stack_lo().load(Ordering::Relaxed)..words.stack_hi().load(Ordering::Relaxed);
    busy != 0 && (cfa < busy || own.contains(&busy) && !own.contains(&cfa))
}

fn word(address: u64) -> u64 {
    // SAFETY: callers name the return slot of a frame on the calling thread's stack.
    unsafe { (address as *const u64).read_volatile() }
}

impl Call<'_> {
    fn count(self, number: u32, from: From) {
        match from {
            From::Mark => {
                let call = Call { caller: Caller::Site(word(self.cfa - 8)), ..self };
                call.values(number, 0, values::of(number).0);
            }
            From::Begin => {
                let Some(cell) = cells::existing(self.cfa) else { return self.lose() };
                let call =
                    Call { caller: Caller::Site(cell.return_address().load(Ordering::Relaxed)), ..self };
                let label = word(self.cfa - 8) << 32;
                call.values(number, label, values::of(number).0);
            }
            From::End => {
                let Some(cell) = cells::existing(self.cfa) else { return self.lose() };
                let call =
                    Call { caller: Caller::Site(cell.return_address().load(Ordering::Relaxed)), ..self };
                // The function that was called has jumped to the one that has returned, if that is another one.
                let last = cell.function().load(Ordering::Relaxed);
                for number in [number, last].into_iter().take(if last == number { 1 } else { 2 }) {
                    if has_results(number) {
                        call.values(number, RESULT, values::of(number).1);
                    }
                }
            }
            From::Open => match self.open().filter(|&open| callee(open) == Some(number)) {
                Some(open) => self.of_open(number, 0, open),
                None => self.lose(),
            },
            From::Close | From::Frame => {
                let Some(last) = self.open() else { return };
                // The functions between have jumped as well, as far as they are not known as one that has done so before.
                let mut first = last;
                while let Some(outer) = area::call(first.outer().load(Ordering::Relaxed))
                    .filter(|&outer| area::cfa(outer) == self.cfa && callee(outer).is_some())
                {
                    first = outer;
                }
                for open in [last, first].into_iter().take(if first == last { 1 } else { 2 }) {
                    if let Some(number) = callee(open).filter(|&number| has_results(number)) {
                        self.of_open(number, RESULT, open);
                    }
                }
            }
        }
    }

    /// Returns the innermost measured call, if it is the one in this frame.
    fn open(self) -> Option<OpenCallRef> {
        let top = area::call(self.block.times().top().load(Ordering::Relaxed))?;
        (area::cfa(top) == self.cfa).then_some(top)
    }

    /// Counts the values of a measured call of the function with a number. `key` is [`RESULT`] or 0.
    fn of_open(self, number: u32, key: u64, open: OpenCallRef) {
        let Some(outer) = area::call(open.outer().load(Ordering::Relaxed)) else { return self.lose() };
        let (arguments, results) = values::of(number);
        let fetches = if key == RESULT { results } else { arguments };
        let caller = Caller::Measured { open, outer };
        Call { caller, ..self }.values(number, key | open_key(outer).upper, fetches);
    }

    fn lose(self) {
        self.header.lost().fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the values that these fetches yield, in the record of the function with a number.
    #[inline(never)]
    fn values(self, number: u32, key: u64, fetches: &[Fetch]) {
        let key = key | (u64::from(number) + 1);
        // If a signal handler makes a record at a place of the table where the interrupted code makes one too, both stay in the area.
        let found = self.find(key).or_else(|| self.make(key, fetches));
        let Some(record) = found.or_else(|| self.rest(key, fetches)) else { return self.lose() };
        let registers = self.saved.registers(self.cfa);
        let len = record.values().load(Ordering::Relaxed) as usize;
        for (n, fetch) in (0..).zip(fetches.iter().take(len)) {
            let mut bytes = [0; CALL_MAX];
            let len = arguments::fetch(core::slice::from_ref(fetch), &registers, &mut bytes);
            let at = record.address() + UNIT + n * size_of::<ValueTally>() as u64;
            let read = bytes.get(..len).and_then(seen);
            match read.zip(value_tally(at)) {
                Some((seen, tally)) => {
                    slots::add(self.agent, self.block, tally, seen, self.is_nested);
                }
                None => self.lose(),
            }
        }
    }

    fn find(self, key: u64) -> Option<CallTallyRef> {
        let table = self.header.table().load(Ordering::Relaxed);
        if table == 0 {
            return None;
        }
        let word = self.caller.word();
        let mut at = table + entry_offset(word, key);
        loop {
            let entry = entry(at)?;
            match entry.key().load(Ordering::Relaxed) {
                0 => return None,
                found if found == key && entry.return_address().load(Ordering::Relaxed) == word => {
                    return call_tally(entry.record().load(Ordering::Relaxed));
                }
                _ => at += size_of::<CallEntry>() as u64,
            }
        }
    }

    /// Returns the record for all measured calls of a function for whose callers there is no room. Returns `None` if there is none for that
    /// either.
    #[inline(never)]
    fn rest(self, key: u64, fetches: &[Fetch]) -> Option<CallTallyRef> {
        // Without paths, there are no nodes that stand for what found no room.
        let Caller::Measured { .. } = self.caller else { return None };
        if self.agent.orders.nodes_max == 0 {
            return None;
        }
        let (call, key) = (Call { caller: Caller::Rest, ..self }, key & u64::from(u32::MAX));
        call.find(key).or_else(|| call.make(key, fetches))
    }

    /// Makes the record of a function and a caller. Returns `None` if there is no room.
    #[inline(never)]
    fn make(self, key: u64, fetches: &[Fetch]) -> Option<CallTallyRef> {
        if self.header.table().load(Ordering::Relaxed) == 0 {
            let len = (ENTRIES + ENTRIES_TAIL) * size_of::<CallEntry>() as u64;
            let table = memory::map_zeros(len, memory::PROT_READ | memory::PROT_WRITE).ok()?;
            self.header.base().store(self.block.address(), Ordering::Relaxed);
            self.header.table().store(table, Ordering::Relaxed);
        }
        let more = if matches!(self.caller, Caller::Rest) { REST_MAX } else { (0, 0) };
        if self.header.entries().load(Ordering::Relaxed) >= ENTRIES_MAX + more.1
            || self.header.used().load(Ordering::Relaxed) >= AREA_MAX + more.0
        {
            return None;
        }
        let place = self.free_entry(key)?;
        let values = fetches.len() as u64;
        let units = 1 + values * (size_of::<ValueTally>() as u64 / UNIT);
        let take = |kind, units| slots::take(self.agent, self.block, kind, units);
        let record = call_tally(take(Kind::Tally, units)?)?;
        let mut is_slow = false;
        for (n, fetch) in (0..).zip(fetches) {
            let tally = value_tally(record.address() + UNIT + n * size_of::<ValueTally>() as u64)?;
            is_slow |= !set(tally, fetch, n as u32);
            let slots = take(Kind::Slots, slots_units(GROUPS_FIRST))?;
            tally.slots().store(slots + UNIT, Ordering::Relaxed);
            tally.mask().store((GROUPS_FIRST - 1) * GROUP_BYTES, Ordering::Relaxed);
        }
        let word = self.caller.word();
        record.return_address().store(word, Ordering::Relaxed);
        record.key().store(key, Ordering::Relaxed);
        let (kind, caller, node) = match self.caller {
            Caller::Site(_) => (CallerKind::Site, NO_FUNCTION, 0),
            Caller::Measured { open, outer } => {
                let node = nodes::node(open.node().load(Ordering::Relaxed));
                let node = node.map_or(0, |node| node.number().load(Ordering::Relaxed));
                (CallerKind::Measured, callee(outer).unwrap_or(NO_FUNCTION), node)
            }
            Caller::Rest => (CallerKind::Rest, NO_FUNCTION, 0),
        };
        record.caller_kind().store(kind.code().0, Ordering::Relaxed);
        record.caller().store(caller, Ordering::Relaxed);
        record.node().store(node, Ordering::Relaxed);
        record.is_slow().store(is_slow.into(), Ordering::Relaxed);
        // A reader knows the values by their number.
        record.values().store(values as u32, Ordering::Release);
        place.return_address().store(word, Ordering::Relaxed);
        place.record().store(record.address(), Ordering::Relaxed);
        place.key().store(key, Ordering::Release);
        self.header.entries().fetch_add(1, Ordering::Relaxed);
        Some(record)
    }

    /// Returns the first free entry for a key. The last place of the table stays free, so that every search ends.
    fn free_entry(self, key: u64) -> Option<CallEntryRef> {
        const ENTRY: u64 = size_of::<CallEntry>() as u64;
        let table = self.header.table().load(Ordering::Relaxed);
        let end = table + (ENTRIES + ENTRIES_TAIL - 1) * ENTRY;
        let mut at = table + entry_offset(self.caller.word(), key);
        while at < end {
            let entry = entry(at)?;
            if entry.key().load(Ordering::Relaxed) == 0 {
                return Some(entry);
            }
            at += ENTRY;
        }
        None
    }
}

/// Writes how a value is read. Returns whether the gates can do that.
fn set(tally: ValueTallyRef, fetch: &Fetch, index: u32) -> bool {
    let op = fetch.op.get();
    let class = match (op, fetch.is_signed) {
        (Some(Op::Scalar | Op::Load), FLOAT) if fetch.size == 4 => ValueClass::Single,
        (Some(Op::Scalar | Op::Load), FLOAT) => ValueClass::Double,
        (Some(Op::Scalar | Op::Load), 0) => ValueClass::Unsigned,
        (Some(Op::Scalar | Op::Load), _) => ValueClass::Signed,
        _ => ValueClass::Text,
    };
    let source = fetch.sources[0];
    // Where the gates save the register.
    let place = -8 - 8 * i64::from(source);
    tally.place().store(place as u64, Ordering::Relaxed);
    tally.shift().store(64 - 8 * fetch.size.clamp(1, 8), Ordering::Relaxed);
    tally.is_signed().store((class == ValueClass::Signed).into(), Ordering::Relaxed);
    tally.index().store(index, Ordering::Relaxed);
    tally.least().store(u64::MAX, Ordering::Relaxed);
    tally.class().store(class.code().0, Ordering::Relaxed);
    const { assert!(INTEGERS <= VECTOR && VECTOR < ON_STACK) };
    source < INTEGERS && op == Some(Op::Scalar)
}

/// Returns the value that was read, or `None` if none was.
fn seen(bytes: &[u8]) -> Option<Seen<'_>> {
    let text = |text: &[u8], flags: u32| text_hash(text, flags);
    match bytes {
        [SCALAR, rest @ ..] => {
            Some(Seen { value: u64::from_le_bytes(rest.get(..8)?.try_into().ok()?), text: None })
        }
        [STRING, flags, _, rest @ ..] => {
            let flags = u32::from(*flags);
            Some(Seen { value: text(rest, flags), text: Some((rest, flags)) })
        }
        [UNREADABLE, ..] => Some(Seen { value: text(&[], NOT_READ), text: Some((&[], NOT_READ)) }),
        _ => None,
    }
}

fn open_key(outer: OpenCallRef) -> OpenKey {
    OpenKey::of(outer.arc().load(Ordering::Relaxed), outer.node().load(Ordering::Relaxed))
}

/// Returns the number of the function of a measured call, or `None` if it is the root of a chain.
fn callee(open: OpenCallRef) -> Option<u32> {
    Some(nodes::arc(open.arc().load(Ordering::Relaxed))?.callee().load(Ordering::Relaxed))
}

fn entry(address: u64) -> Option<CallEntryRef> {
    // SAFETY: callers name a place in the thread's table, which stays mapped.
    unsafe { CallEntryRef::at(address) }
}

fn call_tally(address: u64) -> Option<CallTallyRef> {
    // SAFETY: addresses in a thread's table and those of new records lead to records of the thread block, which stay mapped.
    unsafe { CallTallyRef::at(address) }
}

fn value_tally(address: u64) -> Option<ValueTallyRef> {
    // SAFETY: as many of these follow a `CallTally` as it says, and gates pass on an address that they have computed in the same way.
    unsafe { ValueTallyRef::at(address) }
}
