//! Writes the thunks, stubs and bodies of consecutive functions: the work of one thread.

use crate::decide::hook::Hook;
use crate::decide::thunk_spec::ThunkSpec;
use crate::decide::verdict::{Reason, Tactic};
use crate::emit::bodies::Bodies;
use crate::emit::code::{RESTORE, Values, Writer};
use crate::emit::emitted::{Emitted, Moved, NO_OWNER};
use crate::emit::layout::{Layout, STUBS};
use crate::emit::thunk::CHECK;
use crate::emit::thunks::Thunk;
use crate::emit::to_text;
use crate::x86::jump::JUMP;
use crate::x86::relocate::call::Call;
use crate::x86::relocate::instructions::{copied, leading_nops, relocate};
use crate::x86::relocate::relocated::{Relocated, Unmovable};
use crate::x86::template::kind::{Measured, Second};
use gprofinject_abi::plan::{
    ArenaHeader, BEGINS, ENTRY_ONLY, FRAMED, FunctionRecord, LOOPS, NEEDS_NO_CELL, Patch, SKIPS, Stay,
};
use gprofinject_image::sort;
use iced_x86::{Decoder, DecoderOptions};
use std::mem::offset_of;
use std::ops::Range;

/// The output for consecutive functions.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// Everything except the bytes of the arena.
    pub(super) out: Emitted,
    /// The place of each function's thunk.
    pub(super) thunks: Vec<usize>,
    /// Jumps at places outside this part's areas: arena offset and target.
    pub(super) jumps: Vec<(usize, usize)>,
    /// Places of the lower half of an exit label, each with the number of its function, which may be in another part.
    pub(super) labels: Vec<(usize, u32)>,
    /// The bodies that move the stack pointer.
    pub(super) bodies: Bodies,
    /// The first free byte after the thunks.
    pub(super) next: usize,
}

/// Emits consecutive functions.
pub(crate) struct PartEmitter<'a, 'd> {
    /// The places of everything in the arena.
    layout: &'a Layout<'a, 'd>,
    /// Writes the part's thunks and stubs.
    code: Writer<'a>,
    /// The output so far.
    part: Part,
}

impl<'a, 'd> PartEmitter<'a, 'd> {
    /// Emits the functions with these numbers. Their thunks are placed from the arena offset `next` on.
    pub(super) fn emit(
        layout: &'a Layout<'a, 'd>,
        code: Writer<'a>,
        numbers: Range<usize>,
        next: usize,
    ) -> Part {
        let mut e = PartEmitter { layout, code, part: Part { next, ..Part::default() } };
        let count = numbers.len();
        e.part.out.records.reserve(count);
        e.part.out.patches.reserve(count);
        e.part.out.owners.reserve(count);
        e.code.tls_fixups.reserve(3 * count);
        for number in numbers {
            e.function(number as u32);
        }
        sort::by_key(&mut e.part.out.patches, |p| p.address);
        e.part.out.code.tls_fixups = e.code.tls_fixups;
        e.part.out.fixups = e.code.fixups.unwrap_or_default();
        e.part
    }

    /// Returns the address at an offset.
    fn address(&self, offset: usize) -> u64 {
        self.layout.address(offset)
    }

    /// Emits the thunk, the stubs, the body and the patches of a function.
    fn function(&mut self, number: u32) {
        let layout = self.layout;
        let n = number as usize;
        let (hook, spec, kind) = (&layout.input.hooks[n], layout.input.specs[n], layout.kinds[n]);
        let home = layout.input.homes.of(n);
        // The bytes at the start of the body before the relocated instructions: those that tell the agent that a call
        // begins, and those of a jump through the agent, which are left free.
        let (begin, gate) = (layout.begin_len(n), layout.gate_of(n));
        let before = begin + gate;
        let template = &layout.templates[kind.index()];
        let checking = layout.checks(n);
        let start = template.place(self.part.next, checking);
        self.part.thunks.push(start);
        let at = start + checking;
        let body = at + template.bytes.len();
        let (resume, exit) = (template.resume, template.exit);
        let (popped, pushed) = match spec.has_exit() {
            true => ((at - start) as u32 + template.popped, template.bytes.len() as u32 - template.pushed),
            false => (0, 0),
        };
        for (i, &(_, other)) in layout.input.uncalled.by(n).iter().enumerate() {
            self.check(start + i * CHECK, other, body + begin);
        }
        if let Some(check) = layout.inside(n) {
            let values = Values { inner: body + begin, ..Values::default() };
            self.code.fill(check, at - check.bytes.len(), &values);
        }
        let f = &layout.input.image.functions[hook.function];
        let entry = f.address;
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let mut record = FunctionRecord {
            entry,
            exit: if spec.has_exit() { at as u32 + exit } else { 0 },
            slots: home.offset,
            mask: home.mask,
            multiplier: home.multiplier,
            shift: home.shift as u8,
            popped: popped as u8,
            pushed: pushed as u8,
            flags: flag(!spec.has_exit(), ENTRY_ONLY)
                | flag(begin != 0, BEGINS)
                | flag(spec.skips, SKIPS)
                | flag(spec.loops, LOOPS)
                | flag(spec.needs_no_cell, NEEDS_NO_CELL),
            resume: if kind.second == Second::Free {
                (layout.stubs + n * STUBS + STUBS - RESTORE) as u32
            } else {
                at as u32 + resume
            },
            body: body as u32,
            size: u32::try_from(f.size).unwrap_or(u32::MAX),
            slot_count: home.count,
            thunk: start as u32,
        };
        let moved = body + before;
        self.part.out.owners.push([start as u32, NO_OWNER]);
        if !layout.reaches(hook) {
            self.part.out.failed.push((hook.function, Reason::Far));
            self.part.out.records.push(FunctionRecord { exit: 0, ..record });
            return;
        }
        match self.body(hook, spec, moved) {
            Ok(relocated) => {
                let patches = layout.patches(hook, layout.landing(number, start), moved, &relocated);
                match patches {
                    Some(patches) => {
                        let stays =
                            if layout.stays(number as usize) { Stay::Function } else { Stay::Not }.code();
                        let owned = patches.into_iter().map(|p| Patch { stays, hook: number + 1, ..p });
                        self.part.out.patches.extend(owned);
                    }
                    None => self.part.out.failed.push((hook.function, Reason::Overlap)),
                }
                // If the body is empty, the thunk leads directly to the code after it.
                let rest = relocated.rest.filter(|_| before == 0);
                let goal = rest.map_or(body, |rest| rest.wrapping_sub(layout.arena) as usize);
                let is_in_text = rest.is_some() && !layout.is_copied(hook.function);
                let inner = body + begin;
                let thunk = Thunk { number, kind, home, at, body: goal, is_body_in_text: is_in_text, inner };
                thunk.write(&mut self.code, layout);
                for r in &hook.retargets {
                    let jump = layout.moved_calls.get(&r.branch.site);
                    let goal = match hook.tactic {
                        Tactic::CallSites => Some(start),
                        _ => relocated.offset_of(r.offset as u32).map(|offset| moved + offset as usize),
                    };
                    self.part.jumps.extend(jump.copied().zip(goal));
                }
                if begin != 0 {
                    let word = if spec.both {
                        offset_of!(ArenaHeader, begin)
                    } else {
                        offset_of!(ArenaHeader, mark)
                    };
                    let outer = layout.input.measured == Measured::Outer;
                    let prefix = outer.then(|| layout.input.role.segment_prefix());
                    self.code.begin(body, number, word, prefix);
                }
                self.code.put(moved, &relocated.bytes);
                match self.to_text(hook, spec, moved, &relocated) {
                    Some(holes) => self.code.record(|fixups| fixups.text.to_mut().extend(holes)),
                    None => self.part.out.failed.push((hook.function, Reason::NotRelocatable)),
                }
                if let Some(word) = relocated.return_address {
                    self.part.out.bias_fixups.push(moved as u32 + word);
                }
                self.part.out.call_jumps.extend(layout.call_jump(hook, moved, &relocated));
                if spec.movable && !layout.is_copied(hook.function) {
                    self.moved_as_is(hook, moved as u32);
                }
                if layout.input.image.facts.go {
                    self.part.out.originals.push((start as u32, hook.at));
                    let pairs: Vec<(u32, u32)> = match spec.movable {
                        true => self.boundaries(hook),
                        false => relocated.map.clone(),
                    };
                    let pairs =
                        pairs.iter().map(|&(from, to)| (moved as u32 + to, hook.at + u64::from(from)));
                    self.part.out.originals.extend(pairs);
                    if let Some(jump) = end_of_copies(&relocated) {
                        let rest = (moved as u32 + jump, hook.at + hook.relocated);
                        self.part.out.originals.push(rest);
                    }
                }
                let later = relocated.map.iter().filter(|(from, _)| *from > 0);
                let later = later.map(|&(from, to)| Moved {
                    from: hook.at + u64::from(from),
                    len: 1,
                    to: moved as u32 + to,
                });
                self.part.out.moved.extend(later);
                self.part.next = moved + relocated.bytes.len();
                // The jump after the relocated instructions is the function's too: an interrupt during the last of them
                // is often taken only after it, and then the jump is next.
                self.part.out.owners.push([moved as u32, hook.function as u32]);
                self.caves(hook);
                if !relocated.frames.is_empty() {
                    record.flags |= FRAMED;
                    self.part.bodies.add(body, before, self.part.next, &relocated.frames);
                }
            }
            Err(_) => {
                self.part.out.failed.push((hook.function, Reason::NotRelocatable));
                record.exit = 0;
            }
        }
        self.part.out.records.push(record);
    }

    /// Returns the offset of each instruction that is copied as it is, and that of its copy. [`copied`] itself does not note
    /// them, because only Go programs need them.
    fn boundaries(&self, hook: &Hook) -> Vec<(u32, u32)> {
        let code = self.layout.input.image.code_at(hook.at, hook.relocated).unwrap_or_default();
        let nops = leading_nops(code);
        let rest = code.get(nops..).unwrap_or_default();
        let starts = Decoder::with_ip(64, rest, 0, DecoderOptions::NONE).into_iter().map(|i| i.ip() as u32);
        starts.map(|at| (nops as u32 + at, at)).collect()
    }

    /// Records the places of copied instructions. Leading nops are not copied: a thread that is at one of
    /// them continues after them.
    fn moved_as_is(&mut self, hook: &Hook, body: u32) {
        let nops = self.layout.input.image.code_at(hook.at, hook.relocated).map_or(0, leading_nops) as u32;
        self.part.out.moved.extend((1..nops).map(|n| Moved {
            from: hook.at + u64::from(n),
            len: 1,
            to: body,
        }));
        let first = nops.max(1);
        if hook.relocated as u32 > first {
            self.part.out.moved.push(Moved {
                from: hook.at + u64::from(first),
                len: hook.relocated as u32 - first,
                to: body + first - nops,
            });
        }
    }

    /// Writes a check before a thunk. If the return slot contains the exit label of the function with number `other`, control
    /// has not come by a call, and the memory below rsp may be in use.
    ///
    /// ```text
    ///   cmp  dword [rsp], exit label  ; the lower half
    ///   je   body
    /// ```
    fn check(&mut self, at: usize, other: u32, body: usize) {
        let code = &mut self.code;
        code.put(at, &[0x81, 0x3c, 0x24]);
        code.put(at + 7, &[0x0f, 0x84]);
        code.branch(at + 9, body);
        self.part.labels.push((at + 3, other));
    }

    /// Returns the offsets of the displacements with which the body of a library's function at offset `body` leads to the
    /// library's text and data: see [`to_text`]. There are none for a program. Returns `None` if they cannot be told.
    fn to_text(&self, hook: &Hook, spec: ThunkSpec, body: usize, relocated: &Relocated) -> Option<Vec<u32>> {
        if !self.layout.input.role.is_library() {
            return Some(Vec::new());
        }
        let again =
            self.body_at(hook, spec, self.address(body).wrapping_add(to_text::SHIFT), to_text::SHIFT).ok()?;
        let holes = to_text::displacements(&relocated.bytes, &again.bytes)?;
        Some(holes.into_iter().map(|hole| body as u32 + hole).collect())
    }

    /// Relocates the first instructions of a function to its body.
    /// # Errors
    /// An instruction cannot run there; the error is the reason.
    fn body(&self, hook: &Hook, spec: ThunkSpec, body: usize) -> Result<Relocated, Unmovable> {
        self.body_at(hook, spec, self.address(body), 0)
    }

    /// Relocates the first instructions of a function to an address. `shift` is the distance by which the rest of the arena
    /// is taken to be moved as well.
    /// # Errors
    /// An instruction cannot run there; the error is the reason.
    fn body_at(&self, hook: &Hook, spec: ThunkSpec, to: u64, shift: u64) -> Result<Relocated, Unmovable> {
        // A relocated call pushes a word. Its alignment only costs a few bytes.
        let layout = self.layout;
        let image = layout.input.image;
        if let Some(start) = layout.input.copies.start(hook.function) {
            let copy = self.address(layout.copies + start as usize).wrapping_add(shift);
            return copied(&[], copy, to);
        }
        let bytes = image.code_at(hook.at, hook.relocated).ok_or(Unmovable("no code"))?;
        if spec.movable {
            // If all of the code is nops (a removed call, or room for a patch), nothing is left.
            let nops = leading_nops(bytes);
            let all = if nops == bytes.len() { self.nops_behind(hook) } else { nops };
            return copied(bytes.get(nops..).unwrap_or_default(), hook.at + all as u64, to);
        }
        let elsewhere = |site: u64| {
            let tail = layout.tails.moved(site);
            tail.or_else(|| layout.moved_calls.get(&site).copied())
                .map(|at| self.address(at).wrapping_add(shift))
        };
        let call = if hook.call.is_some() { Call::InPlace } else { Call::Emulated };
        relocate(bytes, hook.at, to, image.functions[hook.function].address, call, &elsewhere)
    }

    /// Returns the number of bytes from the hook point on that are nops, including those after the
    /// relocated ones.
    fn nops_behind(&self, hook: &Hook) -> usize {
        let image = self.layout.input.image;
        let f = &image.functions[hook.function];
        image.code_at(hook.at, f.address + f.size - hook.at).map_or(0, leading_nops)
    }

    /// Describes the function's caves to unwinders. Where a branch back leads to a later instruction than
    /// the first, the stack may differ from that at entry, so such a cave keeps its original description.
    fn caves(&mut self, hook: &Hook) {
        let first = hook.retargets.iter().filter(|r| r.offset == 0 || hook.tactic == Tactic::CallSites);
        for cave in first.filter_map(|r| r.cave).chain(hook.cave) {
            self.part.bodies.cave(cave.wrapping_sub(self.layout.arena), JUMP);
        }
    }
}

/// Returns the offset of the jump that follows the relocated instructions, if one does and no call comes before it.
fn end_of_copies(relocated: &Relocated) -> Option<u32> {
    let end = relocated.bytes.len().checked_sub(JUMP as usize)?;
    (relocated.return_address.is_none() && relocated.bytes[end] == 0xe9).then_some(end as u32)
}
