//! Reads the rings of events of a process while it writes them, whatever it has written there.

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
/// The greatest number of slots that are read at a time.
const PIECE: u64 = 1 << 14;
/// For how long the reader comes back to a slot that is taken and not written, although later ones are, before it goes on without
/// it. A signal handler that has interrupted the thread there may take its time, and may never return.
const PATIENCE: Duration = Duration::from_millis(100);
/// What part of a ring is between the thread and the reader that begins to copy the rest, and how often it tries to.
const MARGINS: u64 = 16;
const TRIES: usize = 4;
/// The smallest number of slots of a ring that is believed.
const SLOTS_MIN: u64 = 1 << 8;

/// The rings of a process.
pub(crate) struct Rings {
    file: File,
    /// Whether the file can be written to, so that the threads learn what has been read.
    is_writable: bool,
    layout: Layout,
    all: Vec<Ring>,
    buffer: Vec<u8>,
}

/// The table of a process's libraries.
pub(crate) struct LoadTable {
    file: File,
    /// 0 if there is none.
    offset: u64,
}

impl LoadTable {
    /// Reads the table as it is now. The process can have written any numbers there.
    pub(crate) fn read(&self) -> Vec<LoadRecord> {
        if self.offset == 0 {
            return Vec::new();
        }
        let records = load_records(&self.file, self.offset).unwrap_or_default();
        records.into_iter().map(|(_, record)| record).collect()
    }
}

/// The ring of a thread, up to where it has been read.
#[derive(Clone, Copy, Debug, Default)]
struct Ring {
    /// The number of the next event to read.
    read: u64,
    /// When the reader first found that the next event is missing while later ones are there.
    passed: Option<Instant>,
    /// The number of the next event at that time.
    behind: u64,
    /// Events below this number that are not there will never be.
    patient_until: u64,
    /// The number of the next event at the last visit.
    next: u64,
}

/// A ring, as those who get its events know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source {
    /// The number of the thread's counters in the region file.
    pub(crate) block: u64,
    /// 0, or the number of a child that counts in the file of this process.
    pub(crate) guest: u32,
}

/// What a ring says.
pub(crate) enum Piece<'b> {
    /// The slots of consecutive events: see [`events`].
    Events(&'b [u8]),
    /// So many slots are gone before they could be read.
    Lost(u64),
}

/// Returns the events in consecutive slots.
pub(crate) fn events(slots: &[u8]) -> impl Iterator<Item = (Kind, u32, u64)> {
    slots.chunks_exact(SLOT as usize).map(|slot| {
        let Slot { time, function, mark } = Slot::read_from_bytes(slot).unwrap_or_default();
        (trace::kind_of(mark).unwrap_or(Kind::None), function, time)
    })
}

/// Returns what the slot of an event is, or `None` if the event is not written yet, or is overwritten.
fn kind_of(slot: &[u8], number: u64) -> Option<Kind> {
    let slot = Slot::read_from_bytes(slot).unwrap_or_default();
    trace::kind(slot.mark, number).filter(|kind| *kind != Kind::None)
}

/// Returns the number of slots of a ring that says that it has this mask, and would have so many slots. A process can write any mask.
fn slots_of(mask: u64, slots: u64) -> u64 {
    let is_smaller = mask.wrapping_add(1).is_power_of_two() && (SLOTS_MIN..slots).contains(&mask);
    if is_smaller { mask + 1 } else { slots }
}

/// Returns the number of slots up to the first one whose event is not there. `from` is the number of the first event.
fn are_there(slots: &[u8], from: u64) -> usize {
    let all = slots.chunks_exact(SLOT as usize).zip(from..);
    all.take_while(|&(slot, number)| kind_of(slot, number).is_some()).count()
}

/// Returns the number of slots up to the first one whose event is there.
fn are_missing(slots: &[u8], from: u64) -> u64 {
    let all = slots.chunks_exact(SLOT as usize).zip(from..);
    all.take_while(|&(slot, number)| kind_of(slot, number).is_none()).count() as u64
}

impl Rings {
    pub(super) fn new(file: File, is_writable: bool, layout: Layout) -> Rings {
        Rings { file, is_writable, layout, all: Vec::new(), buffer: Vec::new() }
    }

    /// Gives the events that were written since the last call to `take`. `is_over`: whether no thread writes any more, so that
    /// everything that can be read is there. Of each ring, only a part is read, so that what was read can be dealt with while the
    /// thread fills it again. Returns the greatest part of a ring that was full.
    ///
    /// # Errors
    /// The file cannot be read.
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

    /// Returns the number of events for which a thread found no room and that no event tells of yet, for each ring that lacks some, by
    /// the number of its counters.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn untold(&self) -> io::Result<Vec<(u64, u64)>> {
        let mut found = Vec::new();
        for block in 0..self.all.len() as u64 {
            let untold = self.header(block)?.untold;
            if untold > 0 {
                found.push((block, untold));
            }
        }
        Ok(found)
    }

    /// Reads what the agent reports.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn report(&self) -> io::Result<AgentReport> {
        Ok(AgentReport::of(&read_value(&self.file, 0)?))
    }

    /// Returns a reader of the table of libraries that the process has prepared or hooked. It has a descriptor of its own.
    ///
    /// # Errors
    /// There are no more descriptors.
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
        // A process can write any number there.
        let source = Source { block, guest: if head.process < PROCESS_MAX { head.process } else { 0 } };
        // The newest slot may be half written, unless it has been there for a while.
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
                // What remains is read at the next visit.
                break;
            }
            let missing = are_missing(&self.buffer[good * SLOT as usize..], ring.read);
            let lost = if is_over {
                missing
            } else if ring.read < ring.patient_until {
                missing.min(ring.patient_until - ring.read)
            } else if ring.read + missing >= end {
                // The thread was interrupted before it could write its newest events, or waits for room.
                part = part.min(good as f64 / slots as f64);
                break;
            } else {
                if ring.passed.is_none() {
                    ring.behind = next;
                }
                if ring.passed.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                    break;
                }
                // Whatever was taken when this one was first missed had as much time.
                ring.patient_until = ring.behind;
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

    /// Appends the slots of so many events from one on, which are next to each other in the ring. Returns `false` if the thread may
    /// have begun to write others over them: it takes the numbers of those before it writes them. Where it does not overwrite what
    /// has not been read, it may take some numbers all the same, before it waits or gives them back.
    fn copy(&self, block: u64, slots: u64, from: u64, count: u64, to: &mut Vec<u8>) -> io::Result<bool> {
        let start = to.len();
        to.resize(start + (count * SLOT) as usize, 0);
        let at = self.at(block) + self.layout.trace_ring() + from % slots * SLOT;
        let found = read_at(&self.file, &mut to[start..], at)?;
        to[start + found..].fill(0);
        let beyond = if self.layout.drops_old() { 0 } else { slots };
        Ok(self.header(block)?.next <= from.saturating_add(slots + beyond))
    }

    /// Goes on with the newest events of a thread that has written others over those that are to be read next. All that are left
    /// are copied before any is looked at: to deal with them takes longer than the thread needs to fill the ring again. Where the
    /// ring says which calls are open, the first such place is where reading goes on.
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
            // Copying is faster than writing, so a small part of the ring between both is enough.
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
            // The thread is always faster. It may be slower at the next visit.
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

    /// Tells the thread how far its ring has been read. If that fails, it loses events, which it counts.
    fn say(&self, block: u64, read: u64) {
        if self.is_writable {
            let at = self.at(block) + TRACE + std::mem::offset_of!(TraceHeader, drained) as u64;
            let _ = self.file.write_all_at(read.as_bytes(), at);
        }
    }
}
