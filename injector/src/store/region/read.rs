//! Reads a region file with the injector's own layout, whatever its process has written there.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use gprofinject_abi::clock::ClockKind;
use gprofinject_abi::region::{
    BlockHeader, LOADS_MAX, Load, LoadRecord, Overflow, PAGE, ROOT, RegionHeader, SEGMENTS, SLOTS,
    SampleRecord, Slot, counters_offset, library_offset, segment_entries, segment_offset,
};
use gprofinject_abi::times::{TIMES, TimesHeader};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::os::shared::{Access, Part};
use crate::store::private_folder::PrivateFolder;
use crate::store::region::layout::{
    AgentReport, BLOCKS_MAX, ELSEWHERE_LEN, HISTOGRAM, Layout, histogram_len, read_at, read_value,
};
use crate::store::region::times::{self, ProcessEnd, Reached, ThreadTimes};
use crate::store::region::window::Window;

/// The number of guests (children that could create no file of their own and count in this one) that are kept
/// apart at most. A process can write any number into the header of thread counters, and each number would
/// get a profile of its own.
const GUESTS_MAX: usize = 1000;
/// The kernel's PID_MAX_LIMIT.
pub(crate) const PROCESS_MAX: u32 = 1 << 22;

/// A region file of this run.
pub(crate) struct Region {
    pub(super) file: Arc<File>,
    window: Option<Arc<Window>>,
    pub(super) layout: Layout,
    /// The process whose thread counters are read: 0 for the file's own process, or the number of a guest.
    process: u32,
    /// The headers of thread counters, read once, because the process may change them in the file at any
    /// time.
    heads: OnceCell<Vec<Head>>,
    /// See [`Region::report`], in the same way.
    report: OnceCell<(AgentReport, bool)>,
}

/// The header of one thread's counters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) offset: u64,
    /// 0, or the number of a guest.
    process: u32,
    tid: u32,
    owners: u32,
    lost_calls: u64,
}

/// What the threads of a process report about themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Threads {
    pub(crate) count: u64,
    pub(crate) lost_calls: u64,
}

/// The counter of an arc. The number of the called function follows from the counter's place or is stored
/// beside it.
pub(crate) struct Counter {
    pub(crate) function: u32,
    pub(crate) key: u64,
    pub(crate) count: u64,
}

/// The threads that have used the same counters, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Owner {
    /// The number of the last one.
    pub(crate) tid: u32,
    pub(crate) count: u32,
}

/// The number of bytes that are read at a time, which stay in the processor's cache until they are visited. It need not be a multiple of
/// an entry's size, since reads follow the tables.
const PIECE: u64 = 64 << 10;

impl Region {
    /// Returns the region in an open file.
    pub(super) fn new(file: Arc<File>, window: Option<Arc<Window>>, layout: Layout) -> Region {
        Region { file, window, layout, process: 0, heads: OnceCell::new(), report: OnceCell::new() }
    }

    /// Reads what the agent reports, and whether the header is damaged: the injector's own part of it is not
    /// as it was written, or the file was truncated.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn report(&self) -> io::Result<(AgentReport, bool)> {
        if let Some(report) = self.report.get() {
            return Ok(*report);
        }
        let header: RegionHeader = read_value(&self.file, 0)?;
        let is_cut_off = self.file.metadata()?.len() < self.layout.blocks_offset + self.layout.block_len();
        let report = (AgentReport::of(&header), is_cut_off || !self.layout.is_that_of(&header));
        Ok(*self.report.get_or_init(|| report))
    }

    /// The number of bytes that the file occupies on its disk or in memory.
    pub(crate) fn committed(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.blocks() * 512)
    }

    /// Copies the data to a new file, which is as sparse.
    ///
    /// # Errors
    /// The file cannot be read or the copy cannot be written.
    pub(crate) fn copy_to(&self, folder: &PrivateFolder, name: &str) -> io::Result<()> {
        let _ = folder.remove_file(name);
        let copy = folder.create_file(name)?;
        let len = self.end()?;
        copy.set_len(len)?;
        let mut result = Ok(());
        self.pieces(0..len, 1, |offset, bytes| {
            if result.is_ok() {
                result = copy.write_all_at(bytes, offset);
            }
        })?;
        result
    }

    /// Visits the nonzero bins of the histogram: the index of the first one, and the counts from there on.
    pub(crate) fn histogram(
        &self,
        mut visit: impl FnMut(u64, &mut dyn Iterator<Item = u32>),
    ) -> io::Result<()> {
        let end = HISTOGRAM + histogram_len(&self.layout.shape);
        self.pieces(HISTOGRAM..end, 4, |offset, bytes| {
            visit((offset - HISTOGRAM) / 4, &mut records(bytes));
        })
    }

    /// Reads the samples outside of the program: runtime addresses and the number of samples at each.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn elsewhere(&self, mut visit: impl FnMut(u64, u64)) -> io::Result<()> {
        let start = self.layout.elsewhere_offset();
        self.pieces(start..start + ELSEWHERE_LEN, size_of::<SampleRecord>() as u64, |_, bytes| {
            for SampleRecord { pc, count } in records(bytes) {
                if pc != 0 && count != 0 {
                    visit(pc, count);
                }
            }
        })
    }

    /// Reads the table of the libraries that the process has loaded and that are or were hooked. Whatever the process
    /// has written there, no two entries overlap in their functions, home slots or counters. Each comes with its index.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn loads(&self) -> io::Result<Vec<(u32, LoadRecord)>> {
        let mut loads = Vec::new();
        if self.layout.libraries.is_none() {
            return Ok(loads);
        }
        let (mut function, mut slot, mut counter) = (0, 0, 0);
        for (index, load) in load_records(&self.file, self.layout.loads_offset())? {
            let Some(Load::Hooked | Load::Gone | Load::Archived) = load.state.get() else { continue };
            let ends = (
                load.first_function.checked_add(load.functions),
                load.first_slot.checked_add(load.slot_bytes),
                load.first_counter.checked_add(load.counter_bytes),
            );
            let (Some(functions_end), Some(slots_end), Some(counters_end)) = ends else { continue };
            let is_behind =
                load.first_function >= function && load.first_slot >= slot && load.first_counter >= counter;
            if is_behind && load.lo <= load.hi {
                (function, slot, counter) = (functions_end, slots_end, counters_end);
                loads.push((index, load));
            }
        }
        Ok(loads)
    }

    /// Reads what the process's threads report.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn threads(&self) -> io::Result<Threads> {
        Ok(self.own_blocks()?.fold(Threads::default(), |sum, head| Threads {
            count: sum.count.saturating_add(head.owners.into()),
            lost_calls: sum.lost_calls.saturating_add(head.lost_calls),
        }))
    }

    /// Returns the numbers of the children that count in this file. They are numbers that a process can have,
    /// and limited to [`GUESTS_MAX`].
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn guests(&self) -> io::Result<BTreeSet<u32>> {
        let numbers = self.heads()?.iter().map(|head| head.process);
        let guests: BTreeSet<u32> = numbers.filter(|number| (1..=PROCESS_MAX).contains(number)).collect();
        Ok(guests.into_iter().take(GUESTS_MAX).collect())
    }

    /// Returns the same file for reading a guest's counters.
    pub(crate) fn of_guest(&mut self, process: u32) -> &Region {
        self.process = process;
        self
    }

    /// Visits every counter in use. `walk` returns a function that returns the number of the function that has a home slot at an offset
    /// in the counters of a thread. It is asked for rising offsets.
    pub(crate) fn counters<W: FnMut(u64) -> Option<u32>>(
        &self,
        walk: impl Fn() -> W,
        mut visit: impl FnMut(Counter),
    ) -> io::Result<()> {
        self.thread_counters(walk, |_, counter| visit(counter))
    }

    /// Does the same, and says whose the counter is.
    pub(crate) fn thread_counters<W: FnMut(u64) -> Option<u32>>(
        &self,
        walk: impl Fn() -> W,
        mut visit: impl FnMut(Owner, Counter),
    ) -> io::Result<()> {
        let own = SLOTS..SLOTS + self.layout.slot_bytes;
        let start = library_offset(self.layout.slot_bytes, self.layout.counter_bytes);
        let libraries = start..start + self.layout.library_bytes();
        for &Head { offset: block, tid, owners: count, .. } in self.own_blocks()? {
            let owner = Owner { tid, count };
            for slots in [&own, &libraries] {
                let slots = block + slots.start..block + slots.end;
                let mut function_at = walk();
                self.pieces(slots, size_of::<Slot>() as u64, |offset, bytes| {
                    let at = offset - block;
                    for (Slot { key, count }, at) in records(bytes).zip((at..).step_by(size_of::<Slot>())) {
                        if count == 0 {
                            continue;
                        }
                        if let Some(function) = function_at(at) {
                            // A return address of 0, which the first frame of a coroutine has, is counted in a
                            // free slot.
                            let key = if key == 0 { ROOT } else { key };
                            visit(owner, Counter { function, key, count });
                        }
                    }
                })?;
            }
            for segment in 0..SEGMENTS {
                let start = block + segment_offset(self.layout.slot_bytes, segment);
                let len = (segment_entries(segment) * size_of::<Overflow>()) as u64;
                self.pieces(start..start + len, size_of::<Overflow>() as u64, |_, bytes| {
                    for Overflow { key, count, function, .. } in records(bytes) {
                        if key != 0 && count != 0 {
                            visit(owner, Counter { function, key, count });
                        }
                    }
                })?;
            }
        }
        Ok(())
    }

    /// Reads what the threads of the process have measured. `process` is when it has ended, by the clock of the measurements; `None`
    /// if that is not known. `ends_of` returns when threads with this number have ended, the earliest first.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn times<E: Iterator<Item = u64>>(
        &self,
        process: Option<u64>,
        ends_of: impl Fn(u32) -> E,
    ) -> io::Result<Vec<ThreadTimes>> {
        let mut all = Vec::new();
        if self.layout.measure.is_none() {
            return Ok(all);
        }
        let start = self.layout.times_area();
        let process = ProcessEnd { process, executed: self.report()?.0.clock_at_end };
        for Head { offset: block, tid, .. } in self.own_blocks()? {
            let header: TimesHeader = read_value(&self.file, block + TIMES)?;
            if header.base == 0 {
                continue;
            }
            let len = header.used.min(header.committed).min(self.layout.times_bytes());
            let mut area = vec![0; len as usize];
            read_at(&self.file, &mut area, block + start)?;
            let reached = Reached { last: header.last, paused: header.paused };
            let end = match self.layout.clock() {
                // The clock stands where the thread's functions have left it, however long ago that was.
                ClockKind::Instructions => header.executed.saturating_sub(header.paused).max(header.last),
                _ => process.of_thread(reached, ends_of(*tid)),
            };
            all.push(times::read(*tid, &header, start, area, end));
        }
        Ok(all)
    }

    /// Returns the program's basic-block counters, summed over the process's threads.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn block_counters(&self) -> io::Result<Vec<u64>> {
        self.sums(counters_offset(self.layout.slot_bytes), self.layout.counter_bytes)
    }

    /// Returns the basic-block counters of a library, summed over the process's threads, or nothing if the entry does not
    /// lead to `counter_bytes` bytes of counters.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn library_counters(&self, load: &LoadRecord, counter_bytes: u64) -> io::Result<Vec<u64>> {
        let (first, len) = (u64::from(load.first_counter), u64::from(load.counter_bytes));
        let start = self.layout.library_counters();
        let is_inside = first >= start && first + len <= start + self.layout.library_counter_bytes();
        if len != counter_bytes || !is_inside { Ok(Vec::new()) } else { self.sums(first, len) }
    }

    /// Returns the counters at an offset in the counters of one thread, summed over the process's threads.
    fn sums(&self, offset: u64, len: u64) -> io::Result<Vec<u64>> {
        let mut sums = vec![0_u64; (len / 8) as usize];
        if sums.is_empty() {
            return Ok(sums);
        }
        for Head { offset: block, .. } in self.own_blocks()? {
            let start = block + offset;
            self.pieces(start..start + len, 8, |offset, bytes| {
                let first = ((offset - start) / 8) as usize;
                for (sum, count) in sums.iter_mut().skip(first).zip(records::<u64>(bytes)) {
                    *sum = sum.saturating_add(count);
                }
            })?;
        }
        Ok(sums)
    }

    /// Returns the headers of the counters of the process's threads.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn own_blocks(&self) -> io::Result<impl Iterator<Item = &Head>> {
        Ok(self.heads()?.iter().filter(|head| head.process == self.process))
    }

    /// Returns the headers of the thread counters that are in use.
    fn heads(&self) -> io::Result<&[Head]> {
        if self.heads.get().is_none() {
            let mut heads = Vec::new();
            for offset in self.block_offsets()? {
                let BlockHeader { tid, process, owners, lost_calls, .. } = read_value(&self.file, offset)?;
                heads.push(Head { offset, process, tid, owners, lost_calls });
            }
            let _ = self.heads.set(heads);
        }
        Ok(self.heads.get().map_or(&[], Vec::as_slice))
    }

    fn block_offsets(&self) -> io::Result<Vec<u64>> {
        let end = self.end()?;
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

    /// Returns the end of the file, or the end that it should have if a process has made it longer.
    fn end(&self) -> io::Result<u64> {
        let most = self.layout.blocks_offset + BLOCKS_MAX * self.layout.block_len();
        Ok(self.file.metadata()?.len().min(most))
    }

    /// Visits the parts of a table that are not holes, in pieces of whole entries. Pages of zeros may be left out like holes.
    fn pieces(&self, table: Range<u64>, entry: u64, mut visit: impl FnMut(u64, &[u8])) -> io::Result<()> {
        let mut reader = Reader { region: self, table: table.clone(), part: None, words: Vec::new() };
        let mut at = table.start;
        while let Some(data) = self.next_data(at, table.end)? {
            // A hole begins and ends at a page, and an entry anywhere.
            let mut start = table.start + (data.start - table.start) / entry * entry;
            let end = table.end.min(table.start + (data.end - table.start).div_ceil(entry) * entry);
            while end - start >= entry {
                let len = (end - start).min(PIECE) / entry * entry;
                let bytes = reader.read(start, len as usize)?;
                if PAGE.is_multiple_of(entry) {
                    for (page, start) in bytes.chunks(PAGE as usize).zip((start..).step_by(PAGE as usize)) {
                        if !is_zero(page) {
                            visit(start, page);
                        }
                    }
                } else {
                    visit(start, bytes);
                }
                start += len;
            }
            at = data.end.max(start);
        }
        Ok(())
    }

    fn next_data(&self, at: u64, end: u64) -> io::Result<Option<Range<u64>>> {
        next_data(&self.file, at, end)
    }
}

/// Returns the next range of a file, at or behind `at` and below `end`, that is not a hole.
///
/// # Errors
/// The file system does not tell.
pub(super) fn next_data(file: &File, at: u64, end: u64) -> io::Result<Option<Range<u64>>> {
    let seek = |place| match rustix::fs::seek(file, place) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(io::Error::from(error)),
    };
    if at >= end {
        return Ok(None);
    }
    let Some(start) = seek(SeekFrom::Data(at))?.filter(|&start| start < end) else { return Ok(None) };
    let stop = seek(SeekFrom::Hole(start))?.unwrap_or(end).min(end);
    Ok(Some(start..stop))
}

/// Reads pieces of a table.
struct Reader<'r> {
    region: &'r Region,
    table: Range<u64>,
    /// The table, mapped when there is anything to read; `None` in it if it cannot be mapped.
    part: Option<Option<Arc<Part>>>,
    words: Vec<u64>,
}

impl Reader<'_> {
    /// Returns bytes of the table, up to the end of the file.
    fn read(&mut self, start: u64, len: usize) -> io::Result<&[u8]> {
        const WORD: usize = size_of::<u64>();
        let file = &self.region.file;
        let table = &self.table;
        let part = self.part.get_or_insert_with(|| {
            let window = self.region.window.as_ref().and_then(|window| window.part(file));
            let is_in = |part: &Arc<Part>| part.has(table);
            window.filter(is_in).or_else(|| Part::of(file, table.clone(), Access::Read).ok().map(Arc::new))
        });
        let before = if part.is_some() { start as usize % WORD } else { 0 };
        let count = (before + len).div_ceil(WORD);
        if self.words.len() < count {
            self.words.resize(count, 0);
        }
        let words = self.words.get_mut(..count).unwrap_or_default();
        let read = match part {
            Some(part) => {
                part.read(start - before as u64, words);
                len
            }
            None => {
                let bytes = words.as_mut_bytes().get_mut(..len).unwrap_or_default();
                read_at(file, bytes, start)?
            }
        };
        Ok(words.as_bytes().get(before..before + read).unwrap_or_default())
    }
}

/// Whether bytes are all zero.
fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().fold(0, |all, word| all | u128::from_ne_bytes(*word)) == 0
        && rest.iter().all(|byte| *byte == 0)
}

/// Returns the whole records in a piece of a table. The piece need not be aligned, so each record is copied.
fn records<T: FromBytes>(bytes: &[u8]) -> impl Iterator<Item = T> {
    bytes.chunks_exact(size_of::<T>()).filter_map(|record| T::read_from_bytes(record).ok())
}

/// Reads the entries of the table of libraries that are in use, each with its index. The process can have written any
/// numbers there.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn load_records(file: &File, offset: u64) -> io::Result<Vec<(u32, LoadRecord)>> {
    let mut records = Vec::new();
    for index in 0..LOADS_MAX as u32 {
        let at = offset.saturating_add(u64::from(index) * size_of::<LoadRecord>() as u64);
        let record: LoadRecord = read_value(file, at)?;
        if record == LoadRecord::default() {
            break;
        }
        records.push((index, record));
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::region::file::RegionFile;
    use crate::store::region::layout::Orders;
    use crate::store::shape::Shape;

    #[test]
    fn counters_are_found_across_holes() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = PrivateFolder::create(place.path()).expect("a folder");
        let shape =
            Shape { text: (0x1000, 0x9000), arena: 0xa000, arena_len: 0x2000, text_shift: 1, arena_shift: 4 };
        let slot_bytes = 20000;
        let layout = Layout::new(shape, slot_bytes, 0, None, None);
        let file = RegionFile::new(&folder, "region".into());
        let region = file.create(&layout, Orders::default()).expect("created");
        assert_eq!(region.report().expect("readable"), (AgentReport::default(), false));

        let block = layout.blocks_offset + layout.block_len();
        let put = |offset: u64, words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            region.file.write_all_at(&bytes, offset).expect("written");
        };
        put(block, &[77, 3, 2]);
        put(block + SLOTS, &[0x1111, 5, 0x2222, 6]);
        put(block + SLOTS + slot_bytes - 16, &[0x3333, 7]);
        // An entry across a page boundary: 24 * 170 = 4080.
        put(block + segment_offset(slot_bytes, 1) + 24 * 170, &[0x4444, 8, 9]);
        put(HISTOGRAM + 4 * 100, &[3]);

        let walk =
            || |at: u64| (SLOTS..SLOTS + slot_bytes).contains(&at).then_some(u32::from(at >= SLOTS + 16));
        let mut found = Vec::new();
        region.counters(walk, |c| found.push((c.function, c.key, c.count))).expect("readable");
        assert_eq!(found, [(0, 0x1111, 5), (1, 0x2222, 6), (1, 0x3333, 7), (9, 0x4444, 8)]);
        assert_eq!(region.threads().expect("readable"), Threads { count: 2, lost_calls: 3 });
        let mut bins = Vec::new();
        let visit = |first: u64, counts: &mut dyn Iterator<Item = u32>| {
            bins.extend((first..).zip(counts).filter(|&(_, n)| n > 0));
        };
        region.histogram(visit).expect("readable");
        assert_eq!(bins, [(100, 3)]);
    }

    #[test]
    fn lengths_are_not_believed() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = PrivateFolder::create(place.path()).expect("a folder");
        let shape =
            Shape { text: (0x1000, 0x9000), arena: 0xa000, arena_len: 0x2000, text_shift: 1, arena_shift: 4 };
        let layout = Layout::new(shape, 20000, 800, None, None);
        let file = RegionFile::new(&folder, "region".into());
        file.create(&layout, Orders::default()).expect("created");
        let writer = folder.open_to_write("region").expect("opened");
        let most = layout.blocks_offset + BLOCKS_MAX * layout.block_len();
        for len in [0, 1, 100, 4095, layout.blocks_offset, most - 1, most + (1 << 40)] {
            writer.set_len(len).expect("resized");
            // After the counters of the last thread that there can be.
            if len > most {
                writer.write_all_at(&[1; 64], len - 64).expect("written");
            }
            let region = file.open(&layout).expect("opened");
            let report = region.report().expect("readable");
            assert!(report.1 == (len <= layout.blocks_offset) || len >= most - 1, "{len}");
            assert_eq!(region.threads().expect("readable"), Threads::default());
            assert!(region.guests().expect("readable").is_empty());
            region.counters(|| |_| Some(0), |_| panic!("nothing was counted")).expect("readable");
            assert_eq!(region.block_counters().expect("readable"), [0; 100]);
            region.copy_to(&folder, "copy").expect("copied");
            assert!(folder.open_file("copy").expect("there").metadata().expect("known").len() <= most);
        }
    }

    #[test]
    fn guests_are_processes_and_not_too_many() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = PrivateFolder::create(place.path()).expect("a folder");
        let shape = Shape { text: (0x1000, 0x2000), arena: 0, arena_len: 0, text_shift: 1, arena_shift: 4 };
        let layout = Layout::new(shape, 16, 0, None, None);
        let file = RegionFile::new(&folder, "region".into());
        let region = file.create(&layout, Orders::default()).expect("created");
        for n in 0..2000 {
            let number = if n % 2 == 0 { 10 + n } else { u32::MAX - n };
            let head = [[0; 20].as_slice(), &number.to_le_bytes(), &[0; 8]].concat();
            let block = layout.blocks_offset + u64::from(n) * layout.block_len();
            region.file.write_all_at(&head, block).expect("written");
        }
        let guests = region.guests().expect("readable");
        assert_eq!(guests.len(), GUESTS_MAX);
        assert!(guests.iter().all(|&number| number < 10 + 2000 && number % 2 == 0));
    }
}
