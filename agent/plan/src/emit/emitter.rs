//! Joins the parts of the arena, and writes the code and tables between and after them.

use crate::decide::verdict::Reason;
use crate::emit::bodies::Bodies;
use crate::emit::cfi::Tables;
use crate::emit::code::{Code, Writer};
use crate::emit::emitted::{Emitted, NO_OWNER};
use crate::emit::layout::{LEA_LEN, Layout, STUBS, gate_jump, labels};
use crate::emit::part::Part;
use crate::emit::sleds;
use gprofinject_abi::plan::{ArenaHeader, Frame, LABEL_LEN};
use gprofinject_abi::region::{PAGE, round_up};
use std::mem::offset_of;

/// `lea r11, [rip+..]` and `lea r10, [rip+..]`, without their displacements.
const LEA_R11: [u8; 3] = [0x4c, 0x8d, 0x1d];
const LEA_R10: [u8; 3] = [0x4c, 0x8d, 0x15];

/// Joins the parts of the arena, and writes the code and tables between and after them.
pub(crate) struct Emitter<'a, 'd> {
    /// The places of everything in the arena.
    pub(crate) layout: &'a Layout<'a, 'd>,
    /// A writer for the whole arena.
    pub(crate) code: Writer<'a>,
    /// The output so far.
    pub(crate) out: Emitted,
    /// Offset of each function's thunk.
    pub(crate) thunks: Vec<usize>,
    /// The bodies with instructions that move the stack pointer.
    bodies: Bodies,
}

impl<'a, 'd> Emitter<'a, 'd> {
    /// Joins the parts.
    pub(crate) fn new(
        layout: &'a Layout<'a, 'd>,
        mut code: Writer<'a>,
        mut parts: Vec<Part>,
    ) -> Emitter<'a, 'd> {
        let next = parts.last().map_or(0, |part| part.next);
        let mut bodies = Bodies::default();
        for part in &mut parts {
            for &(from, to) in &part.jumps {
                code.jump(from, to);
            }
            bodies.append(std::mem::take(&mut part.bodies));
            code.record(|fixups| fixups.append(&part.out.fixups));
        }
        code.tls_fixups = joined(&mut parts, |part| &mut part.out.code.tls_fixups);
        let mut owners = joined(&mut parts, |part| &mut part.out.owners);
        owners.push([next as u32, NO_OWNER]);
        let out = Emitted {
            records: joined(&mut parts, |part| &mut part.out.records),
            patches: joined(&mut parts, |part| &mut part.out.patches),
            call_jumps: joined(&mut parts, |part| &mut part.out.call_jumps),
            bias_fixups: joined(&mut parts, |part| &mut part.out.bias_fixups),
            half_bias_fixups: joined(&mut parts, |part| &mut part.out.half_bias_fixups),
            moved: joined(&mut parts, |part| &mut part.out.moved),
            originals: joined(&mut parts, |part| &mut part.out.originals),
            failed: joined(&mut parts, |part| &mut part.out.failed),
            owners,
            ..Emitted::default()
        };
        let thunks = joined(&mut parts, |part| &mut part.thunks);
        let labels = joined(&mut parts, |part| &mut part.labels);
        let mut emitter = Emitter { layout, code, out, thunks, bodies };
        emitter.labels(&labels);
        emitter
    }

    /// Writes the lower halves of exit labels, at places that are given with the number of the label's function.
    fn labels(&mut self, labels: &[(usize, u32)]) {
        for &(at, number) in labels {
            let label = self.address(self.out.records[number as usize].exit as usize);
            self.code.word(at, label as u32);
            self.out.half_bias_fixups.push(at as u32);
        }
    }

    /// Returns the address at an offset.
    pub(crate) fn address(&self, offset: usize) -> u64 {
        self.layout.address(offset)
    }

    /// Writes the jumps to the slow path of exits, the labels of interned frames, the thunks' unwind tables, and the ends of
    /// sleds.
    pub(crate) fn fixed(&mut self) {
        self.code.exits(self.layout.exits);
        for at in labels(self.layout.input.role).into_iter().flatten().step_by(LABEL_LEN) {
            self.code.call_through(at, offset_of!(ArenaHeader, interned));
        }
        self.unwind_tables();
        for (at, chain) in &self.layout.chains {
            let numbers = std::iter::once(&chain.head).chain(&chain.sleds);
            let thunks: Vec<u64> = numbers.map(|&n| self.address(self.thunks[n])).collect();
            match sleds::code(self.address(*at), &thunks) {
                Some(code) => self.code.put(*at, &code),
                None => {
                    let head = self.layout.input.hooks[chain.head].function;
                    self.out.failed.push((head, Reason::Far));
                }
            }
        }
    }

    /// Writes the unwind tables of thunks. An arena that is too large for them (2 GiB) is out of its
    /// program's reach in any case.
    fn unwind_tables(&mut self) {
        let at = self.layout.unwind;
        let shadows = self.address(offset_of!(ArenaHeader, shadows));
        let Some(tables) = Tables::new(self.layout.copies as u32, at as u32, shadows) else { return };
        self.code.put(at, &tables.bytes);
        let addresses = tables.addresses.iter().map(|a| at as u32 + a);
        self.out.bias_fixups.extend(addresses.clone());
        self.code.record(|fixups| fixups.arena_words.to_mut().extend(addresses));
        for (frame, start) in tables.starts {
            self.out.frame_tables[frame as usize] = at as u32 + start;
        }
    }

    /// Writes the jumps through the agent, each at the start of a function's body.
    pub(crate) fn gate_jumps(&mut self) {
        for f in self.layout.input.through_agent {
            let at = self.out.records[f.number].body as usize + self.layout.begin_len(f.number);
            // The agent calls the helper itself, not through a gate.
            let helper = f.helper.map(|n| {
                self.out.records[n].body as usize + self.layout.begin_len(n) + self.layout.gate_of(n)
            });
            let code = &mut self.code;
            code.put(at, &LEA_R11);
            code.branch(at + LEA_R11.len(), at + gate_jump(f));
            let mut next = at + LEA_LEN;
            if let Some(helper) = helper {
                code.put(next, &LEA_R10);
                code.branch(next + LEA_R10.len(), helper);
                next += LEA_LEN;
            }
            code.jump_through(next, f.gate);
        }
    }

    /// Writes the last table. Returns the output, and the arena offset from which on the arena is unused.
    pub(crate) fn finish(mut self) -> (Emitted, usize) {
        let layout = self.layout;
        let table = self.bodies.table(layout.bodies as u32);
        self.code.put(layout.bodies, &table);
        self.out.frame_tables[Frame::Moved as usize] = layout.bodies as u32;
        let caves = (layout.bodies + table.len()).next_multiple_of(8);
        let (table, to_text) = self.bodies.caves(caves as u32);
        self.code.put(caves, &table);
        self.code.record(|fixups| fixups.text.to_mut().extend(to_text));
        self.out.frame_tables[Frame::Cave as usize] = caves as u32;
        let end = caves + table.len();
        let copied = !layout.input.copies.units.is_empty();
        let len = if copied { layout.len } else { round_up(end as u64, PAGE) as usize };
        self.out.copies = if copied { layout.copies } else { len } as u32;
        (self.out.stubs, self.out.stub_len) = (layout.stubs as u32, STUBS as u32);
        self.out.tail_code = layout.tails.start() as u32;
        // The parts are sorted runs, which a stable sort only merges.
        self.out.owners.sort();
        self.out.add_patches(Vec::new());
        self.out.fixups = self.code.fixups.unwrap_or_default();
        self.out.code = Code { arena: layout.arena, bytes: Vec::new(), tls_fixups: self.code.tls_fixups };
        (self.out, len)
    }
}

/// Concatenates one list of all parts.
fn joined<T>(parts: &mut [Part], of: impl Fn(&mut Part) -> &mut Vec<T>) -> Vec<T> {
    let mut all = Vec::with_capacity(parts.iter_mut().map(|part| of(part).len()).sum());
    for part in parts {
        all.append(of(part));
    }
    all
}
