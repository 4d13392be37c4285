//! The plan file. See [`gprofinject_abi::plan`] for its layout.

use crate::plan::{Hooks, Plan};
use gprofinject_abi::VERSION;
use gprofinject_abi::plan::{HOOK_BOTH, HOOK_ENTRY, MAGIC, PlanHeader, Segment, Table};
use gprofinject_abi::region::{PAGE, round_up};

impl Plan {
    /// The bytes of the plan file.
    pub fn encode(&self) -> Vec<u8> {
        let e = &self.emitted;
        let mut file = Vec::with_capacity(e.bytes.len() + e.patches.len() * 160);
        file.resize(size_of::<PlanHeader>(), 0);
        let functions = table(&mut file, &e.records, |f, out| {
            word(out, f.entry);
            let places = [f.exit, f.slots, f.mask, f.multiplier, f.shift];
            for v in places.into_iter().chain([f.resume, f.body, f.flags, f.slot_count, f.thunk]) {
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
            half(out, 0);
            out.extend_from_slice(&p.original);
            out.extend_from_slice(&p.replacement);
        });
        let tls_fixups = table(&mut file, &e.tls_fixups, |&v, out| half(out, v));
        let bias_fixups = table(&mut file, &e.bias_fixups, |&v, out| half(out, v));
        let half_bias_fixups = table(&mut file, &e.half_bias_fixups, |&v, out| half(out, v));
        let mut next = (file.len() + e.used.len() * size_of::<Segment>()) as u64;
        let segments = table(&mut file, &e.used, |used, out| {
            word(out, used.start as u64);
            word(out, next_after(&mut next, used.len() as u64));
            word(out, used.len() as u64);
        });
        for used in &e.used {
            file.extend_from_slice(&e.bytes[used.clone()]);
        }
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
        for v in e.frame_tables.into_iter().chain([0, e.stubs, e.stub_len]) {
            half(&mut header, v);
        }
        word(&mut header, e.tail_code.into());
        file[..header.len()].copy_from_slice(&header);
        file
    }
}

/// The old value; the new one is `len` more.
fn next_after(next: &mut u64, len: u64) -> u64 {
    let at = *next;
    *next += len;
    at
}

fn word(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn half(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn table<T>(file: &mut Vec<u8>, entries: &[T], mut put: impl FnMut(&T, &mut Vec<u8>)) -> Table {
    let offset = file.len() as u64;
    for entry in entries {
        put(entry, file);
    }
    file.resize(file.len().next_multiple_of(8), 0);
    Table { offset, count: entries.len() as u64 }
}
