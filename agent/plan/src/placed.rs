//! Makes the plan file of a library for the numbers that a process gives it.
//!
//! The plan of a library is made once for its file. Which numbers and home slots are free for it is known only in the process, and
//! whether there is room for its arena where the plan has it. [`Plan::place`] changes the plan file accordingly. It does not depend
//! on where the library is loaded, so that all processes with the same numbers have the same file.

use crate::emit::fixups::Fixups;
use crate::plan::Plan;
use gprofinject_abi::plan::{
    CallJump, CodeRange, CounterRange, FunctionRecord, Patch, PlanHeader, Table, TailRecord,
};
use gprofinject_abi::region::SLOTS;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The numbers that are free for a library in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    /// How many bytes further up than in the plan the arena is, seen from the library; a multiple of the page size.
    pub moved: i64,
    /// Number of the library's first function, which is at least
    /// [`LIBRARIES`](gprofinject_abi::plan::LIBRARIES).
    pub first_function: u32,
    /// Byte offset from the start of a thread block at which the home slots of the library begin.
    pub first_slot: u32,
    /// Index of the library's first tail call in the table of the tail calls of all libraries.
    pub first_tail: u32,
    /// Byte offset from the start of a thread block at which the basic-block counters of the library begin.
    pub first_counter: u32,
    /// The thread pointer offset of the agent's words there.
    pub words: i64,
}

impl Plan {
    /// Returns the plan file of a library with the numbers that a process gives it.
    ///
    /// Returns `None` if the arena is out of the library's reach there, or if a number does not fit, or if the plan is not
    /// that of a library or is damaged.
    pub fn placed(&self, at: &Placement) -> Option<Vec<u8>> {
        let mut file = self.encode(&[]).concat();
        self.place(at, &mut file)?;
        Some(file)
    }

    /// Changes the plan file of a library, as [`Plan::encode`] has written it. The bytes begin
    /// at a multiple of 8. If the result is `None`, for the same reasons as that of [`Plan::placed`], parts of them have
    /// changed.
    pub fn place(&self, at: &Placement, file: &mut [u8]) -> Option<()> {
        let mut header = PlanHeader::read_from_prefix(file).ok()?.0;
        let moved = at.moved;
        let slots = at.first_slot.wrapping_sub(SLOTS as u32);

        for record in entries::<FunctionRecord>(file, header.functions)? {
            record.slots = record.slots.checked_add(at.first_slot)?.checked_sub(SLOTS as u32)?;
        }
        for tail in entries::<TailRecord>(file, header.tails)? {
            tail.slot = tail.slot.checked_add(at.first_slot)?.checked_sub(SLOTS as u32)?;
            for number in [&mut tail.callee, &mut tail.caller] {
                *number = number.checked_add(at.first_function)?;
            }
        }
        for counters in entries::<CounterRange>(file, header.counters)? {
            counters.first = counters.first.checked_add(at.first_counter)?;
        }
        if moved != 0 {
            move_tables(file, &header, moved)?;
        }
        let words = |file: &mut [u8], table| -> Option<Vec<u32>> {
            Some(entries::<u32>(file, table)?.map(|word| *word).collect())
        };
        let half_words = words(file, header.half_bias_fixups)?;
        let tls_words = words(file, header.tls_fixups)?;
        let start = usize::try_from(header.arena_file).ok()?;
        let mut arena =
            Arena(file.get_mut(start..start.checked_add(usize::try_from(header.arena_len).ok()?)?)?);
        let Fixups { text, wide_text, slots: slot_words, numbers, tails, arena_words, counters } =
            &self.emitted.fixups;
        for (words, value) in [
            (slot_words, slots),
            (numbers, at.first_function),
            (tails, at.first_tail),
            (counters, at.first_counter),
        ] {
            words.iter().try_for_each(|&word| arena.add(word, value))?;
        }
        for &word in tls_words.iter().filter(|_| at.words != header.words) {
            arena.add(word, at.words.wrapping_sub(header.words) as u32)?;
        }
        if moved != 0 {
            for &word in text.iter() {
                shift(arena.word(word)?, moved.checked_neg()?)?;
            }
            for &word in wide_text.iter() {
                arena.add_wide(word, moved.checked_neg()? as u64)?;
            }
            for &word in arena_words.iter() {
                arena.add_wide(word, moved as u64)?;
            }
            for &word in &half_words {
                arena.add(word, moved as u32)?;
            }
        }
        header.arena = header.arena.wrapping_add(moved as u64);
        header.words = at.words;
        header.first_function = at.first_function;
        header.first_counter = at.first_counter.into();
        file.get_mut(..size_of::<PlanHeader>())?.copy_from_slice(header.as_bytes());
        Some(())
    }
}

/// Changes the tables of a library's plan file whose arena is not where the plan has it.
fn move_tables(file: &mut [u8], header: &PlanHeader, moved: i64) -> Option<()> {
    let is_copy = |at: u64| at.wrapping_sub(header.arena) < header.arena_len;
    let mut hooked: Vec<&mut CodeRange> = entries::<CodeRange>(file, header.hooked)?.collect();
    for range in hooked.iter_mut().filter(|range| is_copy(range.lo)) {
        (range.lo, range.hi) = (range.lo.wrapping_add(moved as u64), range.hi.wrapping_add(moved as u64));
    }
    let mut sorted: Vec<CodeRange> = hooked.iter().map(|range| **range).collect();
    sorted.sort_unstable_by_key(|range| range.lo);
    hooked.into_iter().zip(sorted).for_each(|(place, range)| *place = range);
    for patch in entries::<Patch>(file, header.patches)? {
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
    Some(())
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

/// The contents of the arena in a plan file.
struct Arena<'f>(&'f mut [u8]);

impl Arena<'_> {
    fn word<const LEN: usize>(&mut self, at: u32) -> Option<&mut [u8; LEN]> {
        self.0.get_mut(at as usize..)?.first_chunk_mut()
    }

    /// Adds to a word of four bytes.
    fn add(&mut self, at: u32, value: u32) -> Option<()> {
        let word = self.word(at)?;
        *word = u32::from_le_bytes(*word).wrapping_add(value).to_le_bytes();
        Some(())
    }

    /// Adds to a word of eight bytes.
    fn add_wide(&mut self, at: u32, value: u64) -> Option<()> {
        let word = self.word(at)?;
        *word = u64::from_le_bytes(*word).wrapping_add(value).to_le_bytes();
        Some(())
    }
}
