//! Makes the plan file of a library for the place where a process has loaded it.
//!
//! The plan of a library is made once for its file. Where the dynamic linker puts the library, where there is room for its
//! arena, and which numbers and home slots are free is known only in the process. [`Plan::placed`] changes the plan file
//! accordingly: all addresses in the result are runtime addresses, and the agent has nothing to add to them.

use crate::emit::fixups::Fixups;
use crate::plan::Plan;
use gprofinject_abi::plan::{
    CallJump, CodeRange, CounterRange, FunctionRecord, Patch, PlanHeader, Segment, Table, TailRecord,
};
use gprofinject_abi::region::SLOTS;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The place of a library in a process, and the numbers that are free there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Runtime address minus link address of the library; a multiple of the page size.
    pub bias: u64,
    /// Runtime address of the library's arena; a multiple of the page size.
    pub arena: u64,
    /// The runtime address to which the offsets in function and tail records are relative; not above `arena`.
    pub records_base: u64,
    /// Number of the library's first function, which is at least
    /// [`LIBRARIES`](gprofinject_abi::plan::LIBRARIES).
    pub first_function: u32,
    /// Byte offset from the start of a thread block at which the home slots of the library begin.
    pub first_slot: u32,
    /// Index of the library's first tail call in the table of the tail calls of all libraries.
    pub first_tail: u32,
    /// Byte offset from the start of a thread block at which the basic-block counters of the library begin.
    pub first_counter: u32,
}

impl Plan {
    /// Returns the plan file of a library for its place in a process. Its arena begins in the process where `at` says.
    ///
    /// Returns `None` if the arena is out of the library's reach there, or if a number does not fit, or if the plan is not
    /// that of a library or is damaged.
    pub fn placed(&self, at: &Placement) -> Option<Vec<u8>> {
        let mut file = self.encode().concat();
        self.place(at, &mut file)?;
        Some(file)
    }

    /// Changes the plan file of a library, as [`Plan::encode`] has written it, for its place in a process. The bytes begin
    /// at a multiple of 8. If the result is `None`, for the same reasons as that of [`Plan::placed`], parts of them have
    /// changed.
    pub fn place(&self, at: &Placement, file: &mut [u8]) -> Option<()> {
        let mut header = PlanHeader::read_from_prefix(file).ok()?.0;
        let offset = u32::try_from(at.arena.checked_sub(at.records_base)?).ok()?;
        // How far the arena moves, seen from the library.
        let moved = at.arena.wrapping_sub(header.arena.wrapping_add(at.bias)) as i64;
        let slots = at.first_slot.wrapping_sub(SLOTS as u32);
        let place = |address: u64| address.wrapping_add(at.bias);

        for record in entries::<FunctionRecord>(file, header.functions)? {
            record.entry = place(record.entry);
            record.slots = record.slots.checked_add(at.first_slot)?.checked_sub(SLOTS as u32)?;
            for field in [&mut record.resume, &mut record.body, &mut record.thunk] {
                *field = field.checked_add(offset)?;
            }
            if record.exit != 0 {
                record.exit = record.exit.checked_add(offset)?;
            }
        }
        for tail in entries::<TailRecord>(file, header.tails)? {
            tail.site = place(tail.site);
            tail.slot = tail.slot.checked_add(at.first_slot)?.checked_sub(SLOTS as u32)?;
            for number in [&mut tail.callee, &mut tail.caller] {
                *number = number.checked_add(at.first_function)?;
            }
            for field in [&mut tail.again, &mut tail.thunk, &mut tail.stub] {
                *field = field.checked_add(offset)?;
            }
            if tail.fills != 0 {
                tail.fills = tail.fills.checked_add(offset)?;
            }
        }
        // The copies are in the arena, which moves on its own.
        let is_copy = |at: u64| at.wrapping_sub(header.arena) < header.arena_len;
        let mut hooked: Vec<&mut CodeRange> = entries::<CodeRange>(file, header.hooked)?.collect();
        for range in &mut hooked {
            let by = if is_copy(range.lo) { moved as u64 } else { 0 };
            (range.lo, range.hi) = (place(range.lo).wrapping_add(by), place(range.hi).wrapping_add(by));
        }
        let mut sorted: Vec<CodeRange> = hooked.iter().map(|range| **range).collect();
        sorted.sort_unstable_by_key(|range| range.lo);
        hooked.into_iter().zip(sorted).for_each(|(place, range)| *place = range);
        for counters in entries::<CounterRange>(file, header.counters)? {
            counters.first = counters.first.checked_add(at.first_counter)?;
        }
        for patch in entries::<Patch>(file, header.patches)? {
            patch.address = place(patch.address);
            if let Some(at) = patch.displacement.checked_sub(1) {
                let displacement = patch.replacement.get_mut(at.into()..)?.first_chunk_mut()?;
                shift(displacement, moved)?;
            }
        }
        for jump in entries::<CallJump>(file, header.call_jumps)? {
            let mut displacement = jump.displacement.to_le_bytes();
            shift(&mut displacement, moved.checked_neg()?)?;
            jump.displacement = u32::from_le_bytes(displacement);
        }

        let words = |file: &mut [u8], table| -> Option<Vec<u32>> {
            Some(entries::<u32>(file, table)?.map(|word| *word).collect())
        };
        let bias_words = words(file, header.bias_fixups)?;
        let half_words = words(file, header.half_bias_fixups)?;
        let mut arena = Arena::new(file, header.segments)?;
        let Fixups { text, wide_text, slots: slot_words, numbers, tails, sites, arena_words, counters } =
            &self.emitted.fixups;
        for &word in text {
            shift(arena.word(word)?, moved.checked_neg()?)?;
        }
        for (words, value) in [
            (slot_words, slots),
            (numbers, at.first_function),
            (tails, at.first_tail),
            (sites, at.bias as u32),
            (counters, at.first_counter),
        ] {
            words.iter().try_for_each(|&word| arena.add(word, value))?;
        }
        for &word in wide_text {
            arena.add_wide(word, moved.checked_neg()? as u64)?;
        }
        for &word in &bias_words {
            arena.add_wide(word, at.bias)?;
        }
        for &word in arena_words {
            arena.add_wide(word, moved as u64)?;
        }
        for &word in &half_words {
            arena.add(word, at.bias.wrapping_add(moved as u64) as u32)?;
        }

        for address in [
            &mut header.phdr,
            &mut header.entry,
            &mut header.text_lo,
            &mut header.text_hi,
            &mut header.code_lo,
            &mut header.code_hi,
        ] {
            *address = place(*address);
        }
        (header.arena, header.records_base) = (at.arena, at.records_base);
        header.first_function = at.first_function;
        header.first_counter = at.first_counter.into();
        (header.bias_fixups.count, header.half_bias_fixups.count) = (0, 0);
        file.get_mut(..size_of::<PlanHeader>())?.copy_from_slice(header.as_bytes());
        Some(())
    }
}

/// Adds to a displacement. Returns `None` if the sum does not fit.
fn shift(displacement: &mut [u8; 4], by: i64) -> Option<()> {
    let sum = i64::from(i32::from_le_bytes(*displacement)).checked_add(by)?;
    *displacement = i32::try_from(sum).ok()?.to_le_bytes();
    Some(())
}

/// Returns the entries of a table in a plan file.
fn entries<T: FromBytes + IntoBytes + Immutable + KnownLayout>(
    file: &mut [u8],
    table: Table,
) -> Option<Entries<'_, T>> {
    let (offset, count) = (usize::try_from(table.offset).ok()?, usize::try_from(table.count).ok()?);
    let bytes = file.get_mut(offset..offset.checked_add(count.checked_mul(size_of::<T>())?)?)?;
    Some(<[T]>::mut_from_bytes(bytes).ok()?.iter_mut())
}

type Entries<'f, T> = std::slice::IterMut<'f, T>;

/// The initial contents of the arena in a plan file.
struct Arena<'f> {
    file: &'f mut [u8],
    /// Sorted by their offsets in the arena.
    segments: Vec<Segment>,
    /// The index of the segment in which the last word was.
    last: usize,
}

impl<'f> Arena<'f> {
    fn new(file: &'f mut [u8], segments: Table) -> Option<Arena<'f>> {
        let mut segments: Vec<Segment> =
            entries::<Segment>(file, segments)?.map(|segment| *segment).collect();
        segments.sort_unstable_by_key(|segment| segment.arena_offset);
        Some(Arena { file, segments, last: 0 })
    }

    /// Returns the bytes from an arena offset to the end of its segment.
    fn bytes(&mut self, at: u32) -> Option<&mut [u8]> {
        let at = u64::from(at);
        let holds =
            |segment: &&Segment| segment.arena_offset <= at && at - segment.arena_offset < segment.len;
        if self.segments.get(self.last).filter(holds).is_none() {
            let after = self.segments.partition_point(|segment| segment.arena_offset <= at);
            self.last = after.checked_sub(1)?;
        }
        let segment = self.segments.get(self.last).filter(holds)?;
        let start = segment.file_offset.checked_add(at - segment.arena_offset)?;
        let end = segment.file_offset.checked_add(segment.len)?;
        self.file.get_mut(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }

    fn word(&mut self, at: u32) -> Option<&mut [u8; 4]> {
        self.bytes(at)?.first_chunk_mut()
    }

    /// Adds to a word of four bytes.
    fn add(&mut self, at: u32, value: u32) -> Option<()> {
        let word = self.word(at)?;
        *word = u32::from_le_bytes(*word).wrapping_add(value).to_le_bytes();
        Some(())
    }

    /// Adds to a word of eight bytes.
    fn add_wide(&mut self, at: u32, value: u64) -> Option<()> {
        let word: &mut [u8; 8] = self.bytes(at)?.first_chunk_mut()?;
        *word = u64::from_le_bytes(*word).wrapping_add(value).to_le_bytes();
        Some(())
    }
}
