//! Reads a process's rings of events while the process writes them. Their contents are not trusted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use gprofinject_abi::region::{BlockHeader, LoadRecord, RegionHeader};
use gprofinject_abi::trace::{self, Kind, Slot, TRACE, TraceHeader};
use zerocopy::{FromBytes, IntoBytes};

use crate::store::region::layout::{AgentReport, BLOCKS_MAX, Layout, read_at, read_value};
use crate::store::region::read::{PROCESS_MAX, load_records};

const SLOT: u64 = size_of::<Slot>() as u64;
/// The maximum number of slots that are read at a time.
const PIECE: u64 = 1 << 14;
/// The time after which the reader skips a slot that a thread has taken but not written, although later slots are written.
///
/// Such a slot belongs to a gate (the agent's code at the beginning or end of a call) that a signal handler has interrupted. The gate
/// writes the slot when the handler returns, and never writes it if the handler leaves by a non-local jump. If later events do not
/// show which case it is, the reader skips the slot when the thread has run for this time, or has filled this part of its ring. The
/// time in which the thread writes nothing, because it is stopped, waits or gets no processor, does not count.
const PATIENCE: Duration = Duration::from_secs(2);
const PATIENT_PART: u64 = 2;
/// The maximum time between two visits that counts as running time of a thread that has written events in between.
const STEP: Duration = Duration::from_millis(10);
/// The divisor of a ring's length that yields the distance from the thread's position at which the reader of an overwritten ring begins
/// to copy; and the maximum number of attempts.
const MARGINS: u64 = 16;
const TRIES: usize = 4;
/// The minimum number of slots of a ring. Smaller numbers in the region file are rejected.
const SLOTS_MIN: u64 = 1 << 8;

/// The rings of a process.
pub(crate) struct Rings {
    file: File,
    /// Whether the file is writable, so that the reader can store how far it has read.
    is_writable: bool,
    layout: Layout,
    all: Vec<Ring>,
    buffer: Vec<u8>,
}

/// The table of a process's libraries.
pub(crate) struct LoadTable {
    file: File,
    /// The offset of the table in the region file, or 0 if there is none.
    offset: u64,
}

impl LoadTable {
    /// Reads the present table. Its contents are not trusted.
    pub(crate) fn read(&self) -> Vec<LoadRecord> {
        if self.offset == 0 {
            return Vec::new();
        }
        let records = load_records(&self.file, self.offset).unwrap_or_default();
        records.into_iter().map(|(_, record)| record).collect()
    }
}

/// The position of the reader in a thread's ring.
#[derive(Clone, Copy, Debug, Default)]
struct Ring {
    /// The number of the next event to read.
    read: u64,
    /// Set while the next event to read is missing although later ones are written.
    passed: Option<Passed>,
    /// Missing events below this number are skipped without a further wait.
    patient_until: u64,
    /// The number of the thread's next event at the last visit.
    next: u64,
}

/// The progress of a thread while one of its events is missing.
#[derive(Clone, Copy, Debug)]
struct Passed {
    /// The number of the thread's next event when the gap was found.
    behind: u64,
    /// The number of the thread's next event at the last visit, and the time of that visit.
    next: u64,
    seen: Instant,
    /// The running time of the thread since the gap was found.
    went_on: Duration,
}

impl Passed {
    /// Notes the number of the thread's next event at a visit.
    fn see(&mut self, next: u64, now: Instant) {
        if next != self.next {
            self.went_on += now.duration_since(self.seen).min(STEP);
        }
        (self.next, self.seen) = (next, now);
    }
}

/// The identity of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source {
    /// The number of the thread's counters in the region file.
    pub(crate) block: u64,
    /// 0, or the number of a child that counts in the file of this process.
    pub(crate) guest: u32,
}

/// A piece of a ring.
pub(crate) enum Piece<'b> {
    /// The slots of consecutive events: see [`events`].
    Events(&'b [u8]),
    /// This number of slots was overwritten before they could be read.
    Lost(u64),
}

/// Returns the events in consecutive slots.
pub(crate) fn events(slots: &[u8]) -> impl Iterator<Item = (Kind, u32, u64)> {
    slots.chunks_exact(SLOT as usize).map(|slot| {
        let Slot { time, function, mark } = Slot::read_from_bytes(slot).unwrap_or_default();
        (trace::kind_of(mark).unwrap_or(Kind::None), function, time)
    })
}

/// Returns the kind of event `number` from its slot, or `None` if the event is not written yet or is overwritten.
fn kind_of(slot: &[u8], number: u64) -> Option<Kind> {
    let slot = Slot::read_from_bytes(slot).unwrap_or_default();
    trace::kind(slot.mark, number).filter(|kind| *kind != Kind::None)
}

/// Returns the number of slots of a ring with this mask, which is not trusted. `slots` is the number of slots that was ordered.
fn slots_of(mask: u64, slots: u64) -> u64 {
    let is_smaller = mask.wrapping_add(1).is_power_of_two() && (SLOTS_MIN..slots).contains(&mask);
    if is_smaller { mask + 1 } else { slots }
}

/// Returns the number of slots before the first one whose event is missing. `from` is the number of the first event.
fn are_there(slots: &[u8], from: u64) -> usize {
    let all = slots.chunks_exact(SLOT as usize).zip(from..);
    all.take_while(|&(slot, number)| kind_of(slot, number).is_some()).count()
}

/// Returns the number of slots before the first one whose event is written.
fn are_missing(slots: &[u8], from: u64) -> u64 {
    let all = slots.chunks_exact(SLOT as usize).zip(from..);
    all.take_while(|&(slot, number)| kind_of(slot, number).is_none()).count() as u64
}

/// Returns whether these events, which follow a missing one, end a call that had begun before it. If so, a signal handler has left the
/// interrupted gate by a non-local jump, and the missing event will never be written: a handler that returns to the gate ends only
/// calls that it has made itself.
fn end_older_calls(slots: &[u8], from: u64) -> bool {
    let mut open = 0_u64;
    for (slot, number) in slots.chunks_exact(SLOT as usize).zip(from..) {
        match kind_of(slot, number) {
            Some(Kind::Enter | Kind::Jump | Kind::Inherited) => open += 1,
            Some(Kind::Exit | Kind::Left) if open == 0 => return true,
            Some(Kind::Exit | Kind::Left) => open -= 1,
            Some(Kind::Mark | Kind::Pause | Kind::Data | Kind::More) => {}
            // Calls on another stack show nothing, and events after another missing event may belong to that one's handler.
            _ => return false,
        }
    }
    false
}

impl Rings {
    pub(super) fn new(file: File, is_writable: bool, layout: Layout) -> Rings {
        Rings { file, is_writable, layout, all: Vec::new(), buffer: Vec::new() }
    }

    /// Passes the events that were written since the last call to `take`. `is_over` is whether no thread writes any more, so that missing
    /// events stay missing. Only a part of each ring is read, so that the reader processes it while the thread fills the ring again.
    /// Returns the fill level of the fullest ring.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub(crate) fn drain(&mut self, is_over: bool, mut take: impl FnMut(Source, Piece)) -> io::Result<f64> {
        let header: RegionHeader = read_value(&self.file, 0)?;
        let blocks = header.blocks.min(BLOCKS_MAX) as usize;
        if self.all.len() < blocks {
            self.all.resize(blocks, Ring::default());
        }
        let mut fullest = 0.0_f64;
        for block in 0..blocks as u64 {
            fullest = fullest.max(self.drain_one(block, is_over, &mut take)?);
        }
        Ok(fullest)
    }

    /// Returns the numbers of lost events that no event reports yet, for each ring that has some, with the number of the thread's
    /// counters.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub(crate) fn unreported(&self) -> io::Result<Vec<(u64, u64)>> {
        let mut found = Vec::new();
        for block in 0..self.all.len() as u64 {
            let unreported = self.header(block)?.unreported;
            if unreported > 0 {
                found.push((block, unreported));
            }
        }
        Ok(found)
    }

    /// Reads the agent's report.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub(crate) fn report(&self) -> io::Result<AgentReport> {
        Ok(AgentReport::of(&read_value(&self.file, 0)?))
    }

    /// Returns a reader of the table of libraries that the process has prepared or hooked. The reader has its own file descriptor.
    ///
    /// # Errors
    /// Returns an error if there are no more file descriptors.
    pub(crate) fn libraries(&self) -> io::Result<LoadTable> {
        let offset = if self.layout.libraries.is_some() { self.layout.loads_offset() } else { 0 };
        Ok(LoadTable { file: self.file.try_clone()?, offset })
    }

    fn at(&self, block: u64) -> u64 {
        self.layout.blocks_offset + block * self.layout.block_len()
    }

    fn header(&self, block: u64) -> io::Result<TraceHeader> {
        read_value(&self.file, self.at(block) + TRACE)
    }

    fn drain_one(
        &mut self,
        block: u64,
        is_over: bool,
        take: &mut impl FnMut(Source, Piece<'_>),
    ) -> io::Result<f64> {
        let Some(&before) = self.all.get(block as usize) else { return Ok(0.0) };
        let TraceHeader { next, mask, .. } = self.header(block)?;
        let slots = slots_of(mask, self.layout.trace_bytes() / SLOT);
        let mut ring = before;
        if next <= ring.read {
            return Ok(0.0);
        }
        let mut part = (next - ring.read) as f64 / slots as f64;
        let head: BlockHeader = read_value(&self.file, self.at(block))?;
        // A process can write any process ID there.
        let source = Source { block, guest: if head.process < PROCESS_MAX { head.process } else { 0 } };
        // The newest slot may be partly written, unless it was there at the last visit already.
        let end = if is_over || next == ring.next { next } else { next - 1 };
        ring.next = next;
        let end = end.min(ring.read.saturating_add(slots));
        while ring.read < end {
            let from = ring.read % slots;
            let count = (end - ring.read).min(slots - from).min(PIECE);
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.clear();
            let is_whole = self.copy(block, slots, ring.read, count, &mut buffer)?;
            let good = if is_whole { are_there(&buffer, ring.read) } else { 0 };
            if good > 0 {
                take(source, Piece::Events(&buffer[..good * SLOT as usize]));
                ring.read += good as u64;
                ring.passed = None;
            }
            self.buffer = buffer;
            if !is_whole {
                self.catch_up(block, slots, &mut ring, is_over, |piece| take(source, piece))?;
                break;
            }
            self.say(block, ring.read);
            if good as u64 == count {
                // The next visit reads the rest.
                break;
            }
            let rest = &self.buffer[good * SLOT as usize..];
            let missing = are_missing(rest, ring.read);
            let lost = if is_over {
                missing
            } else if ring.read < ring.patient_until {
                missing.min(ring.patient_until - ring.read)
            } else if ring.read + missing >= end {
                // The thread was interrupted before it could write its newest events, or waits for room.
                part = part.min(good as f64 / slots as f64);
                break;
            } else if end_older_calls(&rest[(missing * SLOT) as usize..], ring.read + missing) {
                missing
            } else {
                let now = Instant::now();
                let first = Passed { behind: next, next, seen: now, went_on: Duration::ZERO };
                let passed = ring.passed.get_or_insert(first);
                passed.see(next, now);
                if passed.went_on < PATIENCE && next - ring.read < slots / PATIENT_PART {
                    part = part.min(good as f64 / slots as f64);
                    break;
                }
                // All slots that were taken when the gap was found have had as much time as this one.
                ring.patient_until = passed.behind;
                missing.min(ring.patient_until - ring.read)
            };
            take(source, Piece::Lost(lost));
            (ring.read, ring.passed) = (ring.read + lost, None);
        }
        self.say(block, ring.read);
        if let Some(place) = self.all.get_mut(block as usize) {
            *place = ring;
        }
        Ok(part)
    }

    /// Appends the slots of `count` events from number `from` on, which are consecutive in the ring. Returns `false` if the thread may
    /// have begun to overwrite them, which its next event number shows: a thread takes numbers before it writes events. Even a thread
    /// that does not overwrite unread events may take numbers beyond the ring, before it waits or gives the numbers back.
    fn copy(&self, block: u64, slots: u64, from: u64, count: u64, to: &mut Vec<u8>) -> io::Result<bool> {
        let start = to.len();
        to.resize(start + (count * SLOT) as usize, 0);
        let at = self.at(block) + self.layout.trace_ring() + from % slots * SLOT;
        let found = read_at(&self.file, &mut to[start..], at)?;
        to[start + found..].fill(0);
        let beyond = if self.layout.drops_old() { 0 } else { slots };
        Ok(self.header(block)?.next <= from.saturating_add(slots + beyond))
    }

    /// Continues with the newest events of a thread that has overwritten the events to read next. Copies all remaining events before it
    /// processes any, because processing takes longer than the thread needs to fill the ring again. Reading resumes at the first
    /// snapshot among these events, if there is one.
    fn catch_up(
        &mut self,
        block: u64,
        slots: u64,
        ring: &mut Ring,
        is_over: bool,
        mut take: impl FnMut(Piece<'_>),
    ) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let (mut first, mut is_whole) = (ring.read, false);
        for _ in 0..TRIES {
            let newest = self.header(block)?.next;
            // The reader copies faster than the thread writes, so a small distance between both is enough.
            let margin = if is_over { 0 } else { slots / MARGINS };
            first = (newest.saturating_sub(slots) + margin).max(ring.read);
            let end = if is_over { newest } else { newest.saturating_sub(1) };
            buffer.clear();
            let mut at = first;
            is_whole = true;
            while is_whole && at < end {
                let count = (end - at).min(slots - at % slots).min(PIECE);
                is_whole = self.copy(block, slots, at, count, &mut buffer)?;
                at += count;
            }
            if is_whole {
                break;
            }
        }
        if !is_whole {
            // In every attempt, the thread was faster. The next visit tries again.
            buffer.clear();
        }
        let marks = buffer.chunks_exact(SLOT as usize).zip(first..);
        let snapshot =
            marks.map(|(slot, number)| kind_of(slot, number)).position(|kind| kind == Some(Kind::Snapshot));
        let from = snapshot.unwrap_or(0);
        let rest = &buffer[from * SLOT as usize..];
        first += from as u64;
        let good = are_there(rest, first);
        take(Piece::Lost(first - ring.read));
        take(Piece::Events(&rest[..good * SLOT as usize]));
        *ring = Ring { read: first + good as u64, passed: None, ..*ring };
        self.buffer = buffer;
        Ok(())
    }

    /// Stores how far the ring has been read. If that fails, the thread finds no room, and counts the events that it loses.
    fn say(&self, block: u64, read: u64) {
        if self.is_writable {
            let at = self.at(block) + TRACE + std::mem::offset_of!(TraceHeader, drained) as u64;
            let _ = self.file.write_all_at(read.as_bytes(), at);
        }
    }
}
