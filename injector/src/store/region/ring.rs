//! Reads the rings of events of a process while it writes them, whatever it has written there.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use gprofinject_abi::region::{BlockHeader, LoadRecord, RegionHeader};
use gprofinject_abi::trace::{self, Kind, Slot, TRACE, TraceHeader};
use zerocopy::{FromBytes, IntoBytes};

use crate::store::region::layout::{AgentReport, BLOCKS_MAX, Layout, read_at, read_value};
use crate::store::region::read::{PROCESS_MAX, load_records};

const SLOT: u64 = size_of::<Slot>() as u64;
/// The greatest number of slots that are read at a time.
const PIECE: u64 = 1 << 14;
/// How often the reader comes back to a slot that is taken and not written before it goes on without it. A signal handler
/// that has interrupted the thread there may take its time.
const PATIENCE: u32 = 200;

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
    /// How often that event was not there yet.
    visits: u32,
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

    /// Returns the number of events for which a thread found no room and that no event tells of yet, summed over all threads.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn untold(&self) -> io::Result<u64> {
        let mut sum = 0_u64;
        for block in 0..self.all.len() as u64 {
            sum = sum.saturating_add(self.header(block)?.untold);
        }
        Ok(sum)
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
        let slots = self.layout.trace_bytes() / SLOT;
        let Some(&before) = self.all.get(block as usize) else { return Ok(0.0) };
        let next = self.header(block)?.next;
        let mut ring = before;
        if next <= ring.read {
            return Ok(0.0);
        }
        let part = (next - ring.read) as f64 / slots as f64;
        let head: BlockHeader = read_value(&self.file, self.at(block))?;
        // A process can write any number there.
        let source = Source { block, guest: if head.process < PROCESS_MAX { head.process } else { 0 } };
        // The newest slot may be half written, unless it has been there for a while.
        let end = if is_over || next == ring.next { next } else { next - 1 };
        ring.next = next;
        if end - ring.read > slots {
            take(source, Piece::Lost(end - slots - ring.read));
            ring.read = end - slots;
        }
        while ring.read < end {
            let from = ring.read % slots;
            let count = (end - ring.read).min(slots - from).min(PIECE);
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.resize((count * SLOT) as usize, 0);
            let found =
                read_at(&self.file, &mut buffer, self.at(block) + self.layout.trace_ring() + from * SLOT)?;
            buffer[found..].fill(0);
            // What is not written yet, or was overwritten meanwhile, does not have the mark of its number.
            let is_there = |(slot, number): (&[u8], u64)| {
                let slot = Slot::read_from_bytes(slot).unwrap_or_default();
                trace::kind(slot.mark, number).is_some_and(|kind| kind != Kind::None)
            };
            let good = buffer
                .chunks_exact(SLOT as usize)
                .zip(ring.read..)
                .take_while(|&slot| is_there(slot))
                .count();
            if good > 0 {
                take(source, Piece::Events(&buffer[..good * SLOT as usize]));
                ring.read += good as u64;
                ring.visits = 0;
            }
            self.buffer = buffer;
            self.say(block, ring.read);
            if good as u64 == count {
                // What remains is read at the next visit.
                break;
            }
            let newest = self.header(block)?.next;
            if newest > ring.read + slots {
                // The thread is faster. With a quarter of the ring between them, the reader can follow it for a while.
                let lost = (newest - slots + slots / 4).min(end).max(ring.read + 1) - ring.read;
                take(source, Piece::Lost(lost));
                ring.read += lost;
            } else if is_over || ring.visits >= PATIENCE {
                take(source, Piece::Lost(1));
                ring.read += 1;
                ring.visits = 0;
            } else {
                ring.visits += 1;
                break;
            }
        }
        self.say(block, ring.read);
        if let Some(place) = self.all.get_mut(block as usize) {
            *place = ring;
        }
        Ok(part)
    }

    /// Tells the thread how far its ring has been read. If that fails, it loses events, which it counts.
    fn say(&self, block: u64, read: u64) {
        if self.is_writable {
            let at = self.at(block) + TRACE + std::mem::offset_of!(TraceHeader, drained) as u64;
            let _ = self.file.write_all_at(read.as_bytes(), at);
        }
    }
}
