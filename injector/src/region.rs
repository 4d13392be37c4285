//! The region file: made before the program starts, read after its end.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use gprofinject_abi::VERSION;
use gprofinject_abi::region::{
    BlockHeader, MAGIC, Overflow, PAGE, ROOT, RegionHeader, SEGMENTS, SLOTS, Slot, block_len,
    counters_offset, round_up, segment_entries, segment_offset, slot_chunk,
};

use crate::histogram::Shape;
use crate::sys;

/// Where everything is. Kept here: what the program's process left in the header is not relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    shape: Shape,
    slot_bytes: u64,
    counter_bytes: u64,
    blocks_offset: u64,
}

const HISTOGRAM: u64 = PAGE;

impl Layout {
    pub(crate) fn new(shape: Shape, slot_bytes: u64, counter_bytes: u64) -> Layout {
        let blocks_offset = round_up(HISTOGRAM + histogram_len(&shape), PAGE);
        Layout { shape, slot_bytes, counter_bytes, blocks_offset }
    }

    fn block_len(&self) -> u64 {
        block_len(self.slot_bytes, self.counter_bytes)
    }

    /// Bytes to be reserved: the histogram is written to only by the agent's timers.
    pub(crate) fn reserved(&self, timer_rate: u32) -> u64 {
        if timer_rate == 0 { PAGE } else { self.blocks_offset }
    }
}

/// Bytes of bins. A damaged program's may be beyond all files; then making the file fails.
fn histogram_len(shape: &Shape) -> u64 {
    shape.bins().saturating_mul(4).min(1 << 60)
}

/// Makes a file that nobody else can have put there.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_NOFOLLOW)
        .mode(0o600)
        .open(path)
}

/// What the agent is told in the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orders {
    /// Samples per second that it takes by timer, or 0.
    pub(crate) timer_rate: u32,
    /// Children, and programs that are executed, are profiled as well.
    pub(crate) follow: bool,
    /// Number of the plan.
    pub(crate) plan: u32,
}

/// Makes the region file.
pub(crate) fn create(path: &Path, layout: &Layout, orders: Orders) -> io::Result<Region> {
    let file = create_private(path)?;
    sys::allocate(&file, layout.reserved(orders.timer_rate))?;
    let blocks_max = make_room(&file, layout)?;
    let header = RegionHeader {
        magic: MAGIC,
        version: VERSION,
        timer_rate: orders.timer_rate,
        follow: orders.follow.into(),
        plan: orders.plan,
        histogram_offset: HISTOGRAM,
        text_bins: layout.shape.text_bins(),
        arena_bins: layout.shape.arena_bins(),
        text_shift: layout.shape.text_shift,
        arena_shift: layout.shape.arena_shift,
        blocks_offset: layout.blocks_offset,
        block_len: layout.block_len(),
        slot_bytes: layout.slot_bytes,
        slot_chunk: slot_chunk(layout.slot_bytes),
        counter_bytes: layout.counter_bytes,
        blocks_max,
        ..zeroed()
    };
    file.write_all_at(bytes_of(&header), 0)?;
    Ok(Region { file, layout: *layout, process: 0 })
}

/// The header of a region file that a process has made, before its layout is known.
pub(crate) fn header_of(path: &Path) -> io::Result<RegionHeader> {
    let header: RegionHeader = read_value(&open_private(path)?, 0)?;
    if header.magic == MAGIC && header.version == VERSION {
        Ok(header)
    } else {
        Err(io::Error::other("it is no region file"))
    }
}

/// Whether a process still counts in the file, if the kernel can tell.
pub(crate) fn is_counted_in(path: &Path) -> Option<bool> {
    sys::is_open_for_writing(&open_private(path).ok()?)
}

fn open_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// Opens a region file with a layout that is known.
pub(crate) fn open(path: &Path, layout: &Layout) -> io::Result<Region> {
    Ok(Region { file: open_private(path)?, layout: *layout, process: 0 })
}

/// Threads that may have a block at the same time.
const BLOCKS_MAX: u64 = 1 << 14;

/// Gives the file, which stays sparse, the length of as many blocks as the file system and the file size
/// limit allow.
fn make_room(file: &File, layout: &Layout) -> io::Result<u64> {
    let mut blocks = BLOCKS_MAX;
    loop {
        match file.set_len(layout.blocks_offset + blocks * layout.block_len()) {
            Ok(()) => return Ok(blocks),
            Err(error) if blocks == 1 => return Err(error),
            Err(_) => blocks /= 2,
        }
    }
}

/// A region file of ours.
pub(crate) struct Region {
    file: File,
    layout: Layout,
    /// Whose blocks are looked at: 0, the file's own process, or a guest's number.
    process: u32,
}

/// A counter of an arc: the called function's number is known from its place, or stored beside it.
pub(crate) struct Counter {
    pub(crate) function: u32,
    pub(crate) key: u64,
    pub(crate) count: u64,
}

/// Bytes read at a time; a multiple of 16 and of 24 is not needed, since reads follow the tables.
const PIECE: usize = 1 << 20;

impl Region {
    pub(crate) fn header(&self) -> io::Result<RegionHeader> {
        self.read_value(0)
    }

    /// Bytes that the file takes on its disk or in memory.
    pub(crate) fn committed(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.blocks() * 512)
    }

    /// Copies what there is to a new file, which is as sparse.
    pub(crate) fn copy_to(&self, path: &Path) -> io::Result<()> {
        let _ = std::fs::remove_file(path);
        let copy = create_private(path)?;
        let len = self.file.metadata()?.len();
        copy.set_len(len)?;
        let mut result = Ok(());
        self.pieces(0..len, 1, |offset, bytes| {
            if result.is_ok() {
                result = copy.write_all_at(bytes, offset);
            }
        })?;
        result
    }

    /// Non-zero histogram bins: index of the first one and the counts from there.
    pub(crate) fn histogram(
        &self,
        mut visit: impl FnMut(u64, &mut dyn Iterator<Item = u32>),
    ) -> io::Result<()> {
        let end = HISTOGRAM + histogram_len(&self.layout.shape);
        self.pieces(HISTOGRAM..end, 4, |offset, bytes| {
            let mut counts =
                bytes.chunks_exact(4).filter_map(|word| Some(u32::from_le_bytes(*word.first_chunk()?)));
            visit((offset - HISTOGRAM) / 4, &mut counts);
        })
    }

    /// The heads of the process's thread blocks.
    pub(crate) fn blocks(&self) -> io::Result<Vec<BlockHeader>> {
        let heads = self.block_offsets()?.into_iter().map(|offset| self.read_value(offset));
        heads
            .filter(|head| head.as_ref().map_or(true, |head: &BlockHeader| head.process == self.process))
            .collect()
    }

    /// The numbers of children that count in this file.
    pub(crate) fn guests(&self) -> io::Result<BTreeSet<u32>> {
        let mut guests = BTreeSet::new();
        for offset in self.block_offsets()? {
            guests.insert(self.read_value::<BlockHeader>(offset)?.process);
        }
        guests.remove(&0);
        Ok(guests)
    }

    /// The same file, as a guest's.
    pub(crate) fn of_guest(self, process: u32) -> Region {
        Region { process, ..self }
    }

    /// Every counter in use. `owners`: byte ranges of home slots in a block with their function's number,
    /// sorted.
    pub(crate) fn counters(
        &self,
        owners: &[(Range<u64>, u32)],
        mut visit: impl FnMut(Counter),
    ) -> io::Result<()> {
        for block in self.block_offsets()? {
            if self.read_value::<BlockHeader>(block)?.process != self.process {
                continue;
            }
            let slots = block + SLOTS..block + SLOTS + self.layout.slot_bytes;
            self.pieces(slots, size_of::<Slot>() as u64, |offset, bytes| {
                let at = offset - block;
                let mut next = owners.partition_point(|(range, _)| range.end <= at);
                for (slot, at) in bytes.chunks_exact(size_of::<Slot>()).zip((at..).step_by(size_of::<Slot>()))
                {
                    let (key, count) = (word(slot, 0), word(slot, 8));
                    while owners.get(next).is_some_and(|(range, _)| range.end <= at) {
                        next += 1;
                    }
                    if let Some(&(_, function)) = owners.get(next)
                        && count != 0
                    {
                        // A return address of 0, a coroutine's first, finds a free slot to be its own.
                        let key = if key == 0 { ROOT } else { key };
                        visit(Counter { function, key, count });
                    }
                }
            })?;
            for segment in 0..SEGMENTS {
                let start = block + segment_offset(self.layout.slot_bytes, segment);
                let len = (segment_entries(segment) * size_of::<Overflow>()) as u64;
                self.pieces(start..start + len, size_of::<Overflow>() as u64, |_, bytes| {
                    for entry in bytes.chunks_exact(size_of::<Overflow>()) {
                        let (key, count, function) = (word(entry, 0), word(entry, 8), word(entry, 16) as u32);
                        if key != 0 && count != 0 {
                            visit(Counter { function, key, count });
                        }
                    }
                })?;
            }
        }
        Ok(())
    }

    /// The block counters, summed over the process's threads.
    pub(crate) fn block_counters(&self) -> io::Result<Vec<u64>> {
        let mut sums = vec![0_u64; (self.layout.counter_bytes / 8) as usize];
        if sums.is_empty() {
            return Ok(sums);
        }
        for block in self.block_offsets()? {
            if self.read_value::<BlockHeader>(block)?.process != self.process {
                continue;
            }
            let start = block + counters_offset(self.layout.slot_bytes);
            self.pieces(start..start + self.layout.counter_bytes, 8, |offset, bytes| {
                let first = ((offset - start) / 8) as usize;
                let counts = bytes.chunks_exact(8).map(|count| word(count, 0));
                for (sum, count) in sums.iter_mut().skip(first).zip(counts) {
                    *sum = sum.wrapping_add(count);
                }
            })?;
        }
        Ok(sums)
    }

    /// The blocks that hold anything.
    fn block_offsets(&self) -> io::Result<Vec<u64>> {
        let end = self.file.metadata()?.len();
        let len = self.layout.block_len();
        let mut offsets = Vec::new();
        let mut at = self.layout.blocks_offset;
        while let Some(data) = self.next_data(at, end)? {
            let block = data.start - (data.start - self.layout.blocks_offset) % len;
            offsets.push(block);
            at = block + len;
        }
        Ok(offsets)
    }

    /// Visits the parts of a table that are not holes, in pieces of whole entries.
    fn pieces(&self, table: Range<u64>, entry: u64, mut visit: impl FnMut(u64, &[u8])) -> io::Result<()> {
        let mut buffer = vec![0; PIECE];
        let mut at = table.start;
        while let Some(data) = self.next_data(at, table.end)? {
            // A hole begins and ends at a page, an entry anywhere.
            let start = table.start + (data.start - table.start) / entry * entry;
            let end = table.end.min(table.start + (data.end - table.start).div_ceil(entry) * entry);
            let len = ((end - start).min(PIECE as u64) / entry * entry) as usize;
            if len == 0 {
                break;
            }
            let Some(piece) = buffer.get_mut(..len) else { break };
            let count = self.read_at(piece, start)?;
            visit(start, piece.get(..count).unwrap_or_default());
            at = start + len as u64;
        }
        Ok(())
    }

    /// As much as there is.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest @ [_, ..]) = buffer.get_mut(done..) {
            match self.file.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// The next range below `end` that is not a hole.
    fn next_data(&self, at: u64, end: u64) -> io::Result<Option<Range<u64>>> {
        let seek = |offset: u64, whence| -> io::Result<Option<u64>> {
            let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
            // SAFETY: no memory is involved.
            let found = unsafe { libc::lseek(self.file.as_raw_fd(), offset, whence) };
            match u64::try_from(found) {
                Ok(found) => Ok(Some(found)),
                Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => Ok(None),
                Err(_) => Err(io::Error::last_os_error()),
            }
        };
        if at >= end {
            return Ok(None);
        }
        let Some(start) = seek(at, libc::SEEK_DATA)?.filter(|&start| start < end) else { return Ok(None) };
        let stop = seek(start, libc::SEEK_HOLE)?.unwrap_or(end).min(end);
        Ok(Some(start..stop))
    }

    fn read_value<T: Raw>(&self, offset: u64) -> io::Result<T> {
        read_value(&self.file, offset)
    }
}

fn read_value<T: Raw>(file: &File, offset: u64) -> io::Result<T> {
    let mut value: T = zeroed();
    // SAFETY: `Raw`: no padding to be exposed, and any bytes are a value.
    let bytes = unsafe { std::slice::from_raw_parts_mut((&raw mut value).cast::<u8>(), size_of::<T>()) };
    file.read_exact_at(bytes, offset)?;
    Ok(value)
}

/// # Safety
/// The type is integers and arrays of integers only, without padding.
unsafe trait Raw: Sized {}

// SAFETY: u64, u32 and [u8; 8]; every u64 stands at a multiple of 8 after an even number of u32.
unsafe impl Raw for RegionHeader {}
// SAFETY: the same.
unsafe impl Raw for BlockHeader {}

fn zeroed<T: Raw>() -> T {
    // SAFETY: `Raw`: zeros are a value.
    unsafe { std::mem::zeroed() }
}

fn bytes_of<T: Raw>(value: &T) -> &[u8] {
    // SAFETY: `Raw`: all bytes are initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_seen_after_its_descriptor() {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
        let path = folder.path().join("region");
        let file = create_private(&path).expect("created");
        assert_eq!(is_counted_in(&path), Some(true));
        file.set_len(4096).expect("resized");
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, of which nothing is read or written.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        drop(file);
        assert_eq!(is_counted_in(&path), Some(true));
        // SAFETY: that mapping, and nothing else.
        assert_eq!(unsafe { libc::munmap(at, 4096) }, 0);
        assert_eq!(is_counted_in(&path), Some(false));
    }

    #[test]
    fn counters_are_found_across_holes() {
        let folder = tempfile::tempdir().expect("a folder");
        let shape =
            Shape { text: (0x1000, 0x9000), arena: 0xa000, arena_len: 0x2000, text_shift: 1, arena_shift: 4 };
        let slot_bytes = 20000;
        let layout = Layout::new(shape, slot_bytes, 0);
        let region = create(&folder.path().join("region"), &layout, Orders::default()).expect("created");
        let header = region.header().expect("readable");
        assert_eq!((header.magic, header.text_bins, header.arena_bins), (MAGIC, 0x4000, 0x200));

        let block = layout.blocks_offset + layout.block_len();
        let put = |offset: u64, words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            region.file.write_all_at(&bytes, offset).expect("written");
        };
        put(block, &[77]);
        put(block + SLOTS, &[0x1111, 5, 0x2222, 6]);
        put(block + SLOTS + slot_bytes - 16, &[0x3333, 7]);
        // An entry across a page boundary: 24 * 170 = 4080.
        put(block + segment_offset(slot_bytes, 1) + 24 * 170, &[0x4444, 8, 9]);
        put(HISTOGRAM + 4 * 100, &[3]);

        let owners = [(SLOTS..SLOTS + 16, 0), (SLOTS + 16..SLOTS + slot_bytes, 1)];
        let mut found = Vec::new();
        region.counters(&owners, |c| found.push((c.function, c.key, c.count))).expect("readable");
        assert_eq!(found, [(0, 0x1111, 5), (1, 0x2222, 6), (1, 0x3333, 7), (9, 0x4444, 8)]);
        let tids: Vec<_> = region.blocks().expect("readable").iter().map(|block| block.tid).collect();
        assert_eq!(tids, [77]);
        let mut bins = Vec::new();
        let visit = |first: u64, counts: &mut dyn Iterator<Item = u32>| {
            bins.extend((first..).zip(counts).filter(|&(_, n)| n > 0));
        };
        region.histogram(visit).expect("readable");
        assert_eq!(bins, [(100, 3)]);
    }
}
