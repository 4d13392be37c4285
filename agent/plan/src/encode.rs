//! Encodes the plan file, whose layout [`gprofinject_abi::plan`] defines.

use crate::decide::options::{Engine, Hooks};
use crate::plan::Plan;
use gprofinject_abi::VERSION;
use gprofinject_abi::plan::{
    CallJump, CodeRange, FunctionRecord, HOOK_BOTH, HOOK_ENTRY, MAGIC, Original, Patch, PlanHeader, Segment,
    Table, TailRecord,
};
use gprofinject_abi::region::{PAGE, round_up};
use std::borrow::Cow;

impl Plan {
    /// Returns the plan file in pieces, to be written one after the other. The arena makes up most of it, and
    /// is borrowed rather than copied.
    pub fn encode(&self) -> Vec<Cow<'_, [u8]>> {
        if let Some(file) = &self.file {
            return vec![Cow::Borrowed(file)];
        }
        let e = &self.emitted;
        let mut file = Vec::with_capacity(self.tables_len());
        file.resize(size_of::<PlanHeader>(), 0);
        let functions = table(&mut file, &self.records, |f, out| {
            word(out, f.entry);
            let bytes = u32::from_le_bytes([f.shift, f.popped, f.pushed, f.flags]);
            let places = [f.exit, f.slots, f.mask, f.multiplier, bytes];
            for v in places.into_iter().chain([f.resume, f.body, f.size, f.slot_count, f.thunk]) {
                half(out, v);
            }
        });
        let tails = table(&mut file, &e.tails, |t, out| {
            word(out, t.site);
            for v in [t.slot, t.callee, t.again, t.thunk] {
                half(out, v);
            }
        });
        let hooked = table(&mut file, &self.hooked, |r, out| {
            word(out, r.lo);
            word(out, r.hi);
        });
        let patches = table(&mut file, &e.patches, |p, out| {
            word(out, p.address);
            half(out, p.len);
            half(out, p.by);
            out.extend_from_slice(&p.original);
            out.extend_from_slice(&p.replacement);
        });
        let tls_fixups = table(&mut file, &e.code.tls_fixups, |&v, out| half(out, v));
        let bias_fixups = table(&mut file, &e.bias_fixups, |&v, out| half(out, v));
        let half_bias_fixups = table(&mut file, &e.half_bias_fixups, |&v, out| half(out, v));
        let originals = table(&mut file, &self.originals, |&(offset, address), out| {
            half(out, offset);
            half(out, address.wrapping_sub(self.text.0) as u32);
        });
        let call_jumps = table(&mut file, &e.call_jumps, |c, out| {
            half(out, c.at);
            half(out, c.displacement);
        });
        let mut next = (file.len() + e.used.len() * size_of::<Segment>()) as u64;
        let segments = table(&mut file, &e.used, |used, out| {
            word(out, used.start as u64);
            word(out, next_after(&mut next, used.len() as u64));
            word(out, used.len() as u64);
        });
        let mut header = Vec::with_capacity(size_of::<PlanHeader>());
        header.extend_from_slice(&MAGIC);
        half(&mut header, VERSION);
        half(&mut header, if self.hooks == Hooks::Both { HOOK_BOTH } else { HOOK_ENTRY });
        let code = (self.code.0 / PAGE * PAGE, round_up(self.code.1, PAGE));
        for v in [self.phdr, self.entry, self.text.0, self.text.1, code.0, code.1, self.arena, self.arena_len]
        {
            word(&mut header, v);
        }
        for t in [functions, tails, hooked, patches, segments, tls_fixups, bias_fixups, half_bias_fixups] {
            word(&mut header, t.offset);
            word(&mut header, t.count);
        }
        word(&mut header, 0); // the arena header stands first in the arena
        for v in e.frame_tables.into_iter().chain([e.stubs, e.stub_len]) {
            half(&mut header, v);
        }
        half(&mut header, e.tail_code);
        half(&mut header, u32::from(self.hooks_removed));
        word(&mut header, u64::from(self.engine != Engine::Builtin));
        for v in [e.copies.into(), self.counter_bytes(), originals.offset, originals.count] {
            word(&mut header, v);
        }
        for v in [call_jumps.offset, call_jumps.count] {
            word(&mut header, v);
        }
        file[..header.len()].copy_from_slice(&header);
        let arena = e.used.iter().map(|used| Cow::Borrowed(&e.code.bytes[used.clone()]));
        std::iter::once(Cow::Owned(file)).chain(arena).collect()
    }
}

impl Plan {
    /// Returns the bytes of the header and the tables, at most.
    fn tables_len(&self) -> usize {
        let e = &self.emitted;
        let fixups = e.code.tls_fixups.len() + e.bias_fixups.len() + e.half_bias_fixups.len();
        size_of::<PlanHeader>()
            + self.records.len() * size_of::<FunctionRecord>()
            + e.tails.len() * size_of::<TailRecord>()
            + self.hooked.len() * size_of::<CodeRange>()
            + e.patches.len() * size_of::<Patch>()
            + e.call_jumps.len() * size_of::<CallJump>()
            + e.used.len() * size_of::<Segment>()
            + (fixups + 3) * size_of::<u32>()
            + self.originals.len() * size_of::<Original>()
    }
}

/// Advances `next` by `len` and returns its old value.
fn next_after(next: &mut u64, len: u64) -> u64 {
    let at = *next;
    *next += len;
    at
}

/// Appends a u64.
fn word(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a u32.
fn half(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a table, padded to a multiple of eight bytes, and returns where it stands.
fn table<T>(file: &mut Vec<u8>, entries: &[T], mut put: impl FnMut(&T, &mut Vec<u8>)) -> Table {
    let offset = file.len() as u64;
    for entry in entries {
        put(entry, file);
    }
    file.resize(file.len().next_multiple_of(8), 0);
    Table { offset, count: entries.len() as u64 }
}
