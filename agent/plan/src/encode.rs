//! Encodes the plan file, whose layout [`gprofinject_abi::plan`] defines.

use crate::blocks::code::COUNTER;
use crate::decide::options::{Engine, Hooks};
use crate::plan::Plan;
use gprofinject_abi::VERSION;
use gprofinject_abi::plan::{
    CallJump, CodeRange, CounterRange, FileVersion, FunctionRecord, HookMode, MAGIC, Original, Patch,
    PlanEnd, PlanHeader, Table, TailRecord,
};
use gprofinject_abi::region::{PAGE, round_up};
use std::borrow::Cow;
use zerocopy::{Immutable, IntoBytes};

impl Plan {
    /// Returns the plan file in pieces, which have to be written in this order, without a copy of the program's file. The arena
    /// makes up most of it, and is borrowed rather than copied. `fetches` are the words of the table of fetches, which may be empty.
    pub fn encode(&self, fetches: &[u8]) -> Vec<Cow<'_, [u8]>> {
        let (mut header, tables, arena) = self.parts();
        let offset = header.arena_file + header.arena_len;
        if !fetches.is_empty() {
            header.fetches = Table { offset, count: (fetches.len() / size_of::<u64>()) as u64 };
        }
        let end = PlanEnd { plan: 0, magic: MAGIC };
        vec![
            Cow::Owned(header.as_bytes().to_vec()),
            tables,
            Cow::Borrowed(arena),
            Cow::Owned([fetches, end.as_bytes()].concat()),
        ]
    }

    /// Returns the header as it is without a copy of the program's file, what is between it and the arena, and the arena.
    pub(crate) fn parts(&self) -> (PlanHeader, Cow<'_, [u8]>, &[u8]) {
        let Some(file) = &self.file else {
            let (header, tables) = self.tables();
            return (header, Cow::Owned(tables), &self.emitted.code.bytes);
        };
        let (text, version_of_text) = Default::default();
        let header = PlanHeader { text, version_of_text, ..file.header() };
        (header, Cow::Borrowed(file.tables()), file.arena())
    }

    /// Returns the header, and what is between it and the arena.
    fn tables(&self) -> (PlanHeader, Vec<u8>) {
        let e = &self.emitted;
        let mut file = Vec::with_capacity(self.tables_len());
        file.resize(size_of::<PlanHeader>(), 0);
        let functions = table(&mut file, &self.records);
        let tails = table(&mut file, &e.tails);
        let hooked = table(&mut file, &self.hooked);
        let patches = table(&mut file, &self.patches);
        let tls_fixups = table(&mut file, &e.code.tls_fixups);
        let bias_fixups = table(&mut file, &e.bias_fixups);
        let half_bias_fixups = table(&mut file, &e.half_bias_fixups);
        // No function is copied whose addresses are too far from the start of the text (`Copies::unit`), and Go's linker puts no code that far.
        let originals = self.originals.iter().filter_map(|&(offset, address)| {
            let text = u32::try_from(address.checked_sub(self.text.0)?).ok()?;
            Some(Original { offset, text })
        });
        let originals = table(&mut file, &originals.collect::<Vec<_>>());
        let call_jumps = table(&mut file, &e.call_jumps);
        let counters = table(&mut file, &self.counter_ranges());
        file.resize(file.len().next_multiple_of(PAGE as usize), 0);
        let mode = if self.hooks == Hooks::Both { HookMode::Both } else { HookMode::Entry };
        let header = PlanHeader {
            magic: MAGIC,
            version: VERSION,
            hooks: mode.code(),
            phdr: self.phdr,
            entry: self.entry,
            text_lo: self.text.0,
            text_hi: self.text.1,
            code_lo: self.code.0 / PAGE * PAGE,
            code_hi: round_up(self.code.1, PAGE),
            arena: self.arena,
            arena_len: self.arena_len,
            functions,
            tails,
            hooked,
            patches,
            arena_file: file.len() as u64,
            words: self.words,
            tls_fixups,
            bias_fixups,
            half_bias_fixups,
            // The header is at the start of the arena.
            arena_header: 0,
            frame_tables: e.frame_tables,
            first_function: 0,
            stubs: e.stubs,
            stub_len: e.stub_len,
            tail_code: e.tail_code,
            hooks_removed: self.hooks_removed.into(),
            frida: (self.engine != Engine::Builtin).into(),
            copies: e.copies.into(),
            counter_bytes: self.counter_bytes(),
            originals,
            call_jumps,
            counters,
            // See `encode`.
            fetches: Table { offset: 0, count: 0 },
            first_counter: 0,
            standalone: self.role.is_standalone().into(),
            small_stacks: self.small_stacks.into(),
            measured: self.measured as u64,
            outermost: self.outermost.into(),
            resumes: self.resumes.into(),
            // Only an image has these.
            text: Table::default(),
            version_of_text: FileVersion::default(),
        };
        (header, file.split_off(size_of::<PlanHeader>()))
    }
}

impl Plan {
    /// Returns the counters that a thread needs from the time when it comes through a hook, for each hook of a library;
    /// nothing for a program, whose threads get all of its counters at once.
    fn counter_ranges(&self) -> Vec<CounterRange> {
        let is_needed = self.role.is_library() && self.copies.counters > 0;
        let ranges = self.copies.reach.iter().filter(|_| is_needed);
        ranges
            .map(|range| CounterRange {
                first: range.start * COUNTER as u32,
                len: range.len() as u32 * COUNTER as u32,
            })
            .collect()
    }

    /// Returns the maximum size of the header and the tables in bytes.
    fn tables_len(&self) -> usize {
        let e = &self.emitted;
        let fixups = e.code.tls_fixups.len() + e.bias_fixups.len() + e.half_bias_fixups.len();
        size_of::<PlanHeader>()
            + self.records.len() * size_of::<FunctionRecord>()
            + e.tails.len() * size_of::<TailRecord>()
            + self.hooked.len() * size_of::<CodeRange>()
            + self.patches.len() * size_of::<Patch>()
            + e.call_jumps.len() * size_of::<CallJump>()
            + PAGE as usize
            + (fixups + 3) * size_of::<u32>()
            + self.originals.len() * size_of::<Original>()
            + self.copies.reach.len() * size_of::<CounterRange>()
    }
}

/// Appends a table, padded to a multiple of eight bytes, and returns its place in the file.
fn table<T: IntoBytes + Immutable>(file: &mut Vec<u8>, entries: &[T]) -> Table {
    let offset = file.len() as u64;
    file.extend_from_slice(entries.as_bytes());
    file.resize(file.len().next_multiple_of(8), 0);
    Table { offset, count: entries.len() as u64 }
}
