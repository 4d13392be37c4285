//! The place of each instruction of a unit in its copy, and the code that is written there.
//! Most instructions are copied byte by byte. RIP-relative operands get a new displacement, and branches
//! the shortest form that reaches. Nops, and unreachable basic blocks, are left out; where nops aligned
//! the next basic block, the copy is aligned too.
//!
//! ```text
//! counter:  inc  qword gs:[disp32]
//! clock:    add  qword gs:[disp32], instructions
//! if the flags are needed at every instruction of the basic block:
//!           lea  rsp, [rsp-128]         ; the red zone
//!           pushfq
//!           inc  qword gs:[disp32]
//!           popfq
//!           lea  rsp, [rsp+128]
//! ```
//!
//! A call of a function that uses its return address pushes the original return address, where a jump
//! leads back to the copy:
//!
//! ```text
//!           call next                   ; the return predictor gets its pair
//!     next: lea  rsp, [rsp+8]
//!           push qword [rip+word]       ; the original return address
//!           jmp  target
//!     word: ..
//! ```
//!
//! An indirect jump, if the original has no room at some of its targets:
//!
//! ```text
//!           lea  rsp, [rsp-128]
//!           push rcx                    ; a register that the jump does not use
//!           lea  rcx, [target]          ; in the original
//!           cmp  rcx, [table+8*rax]
//!           pop  rcx
//!           lea  rsp, [rsp+128]
//!           je   copy of the target
//!           jmp  [table+8*rax]
//! ```

use crate::blocks::code::{
    COMPARE, COMPARE_FRAMES, COUNTER, NEAR_JUMP, PUSH_ORIGINAL, PUSH_ORIGINAL_FRAMES, PUSH_ORIGINAL_LEN,
    Site, WORD, Words, Writer, keep_frames,
};
use crate::blocks::graph::Graph;
use crate::blocks::steps::{Step, Steps, Way};
use crate::blocks::uncounted::Uncounted;
use gprofinject_image::Image;

/// The start of each part of a copy is a multiple of this, in bytes.
pub(super) const ALIGN: u32 = 16;

/// The place of a part of a unit.
#[derive(Debug)]
struct PartLayout {
    /// Offset in the copies.
    at: u32,
    /// Bytes.
    len: u32,
    /// Index of its first step.
    first: usize,
    /// Index of the first step after it.
    end: usize,
    /// The address at which the original continues after the last instruction. A jump to its copy ends the
    /// part.
    goes_on: Option<u64>,
}

/// The place of each instruction of a unit in the copies.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// The parts.
    parts: Vec<PartLayout>,
    /// By step: the offset in its part of the code that replaces it, without the padding before that code.
    offsets: Vec<u32>,
    /// By step: bytes of padding before it.
    padding: Vec<u8>,
    /// By step: whether it is a branch that a short displacement does not reach.
    far: Vec<bool>,
    /// By step: bytes of the counter before it.
    counters: Vec<u8>,
    /// By step: whether that code moves the stack pointer.
    keeps: Vec<bool>,
    /// By step: whether it is left out.
    dropped: Vec<bool>,
    /// By step: index of its part.
    part_of: Vec<u8>,
    /// Targets that indirect jumps are compared with.
    compared: Vec<u64>,
}

impl Layout {
    /// Chooses the form of each instruction. `compared` has the targets with which indirect jumps are
    /// compared. The parts have no places yet.
    /// # Errors
    /// The function cannot be copied; the error is the reason.
    pub(super) fn new(steps: &Steps, graph: &Graph, compared: Vec<u64>) -> Result<Layout, Uncounted> {
        let mut jumps = graph.blocks.iter().filter(|b| steps.list[b.end - 1].way == Way::JumpIndirect);
        if !compared.is_empty() && !jumps.all(|b| b.leaves_no_flags) {
            return Err(Uncounted::NoRoom);
        }
        let count = steps.list.len();
        let mut layout = Layout {
            offsets: vec![0; count],
            padding: vec![0; count],
            far: vec![false; count],
            counters: vec![0; count],
            keeps: vec![false; count],
            dropped: vec![false; count],
            part_of: vec![0; count],
            parts: Vec::with_capacity(steps.parts.len()),
            compared,
        };
        for block in &graph.blocks {
            let added = block.added();
            layout.counters[block.place] = added.len() as u8;
            layout.keeps[block.place] = added.keeps_flags && added.len() > 0;
            for n in block.first..block.end {
                layout.dropped[n] = block.dead || steps.list[n].way == Way::Nop;
            }
        }
        for (p, part) in steps.parts.iter().enumerate() {
            layout.part_of[part.first..part.end]
                .fill(u8::try_from(p).map_err(|_| Uncounted::NotRelocatable)?);
            for n in part.first..part.end {
                let stays = steps.list[n].way.target().and_then(|t| steps.at(t));
                layout.far[n] = stays.is_none_or(|t| !(part.first..part.end).contains(&t));
            }
            let ends = part.end.checked_sub(1).filter(|&n| n >= part.first).map(|n| (n, &steps.list[n]));
            let lives = graph.blocks.iter().any(|b| b.end == part.end && !b.dead);
            let goes_on = ends.filter(|(_, s)| s.way.falls_through() && lives).map(|_| part.hi);
            layout.parts.push(PartLayout { at: 0, len: 0, first: part.first, end: part.end, goes_on });
            layout.relax(steps, p);
        }
        Ok(layout)
    }

    /// Begins with short branches, and lengthens those that do not reach their targets until all do.
    fn relax(&mut self, steps: &Steps, p: usize) {
        loop {
            self.sum(steps, p);
            let mut changed = false;
            for n in self.parts[p].first..self.parts[p].end {
                let step = &steps.list[n];
                let Some(target) = step.way.target() else { continue };
                if self.far[n] || self.dropped[n] || matches!(step.way, Way::Begin(_)) {
                    continue;
                }
                let Some(target) = steps.at(target) else { continue };
                let end = self.offsets[n] + u32::from(self.counters[n]) + self.size(step, n);
                let distance = i64::from(self.offsets[target]) - i64::from(end);
                if i8::try_from(distance).is_err() {
                    self.far[n] = true;
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }

    /// Computes the offset of each instruction of a part, and the part's length.
    fn sum(&mut self, steps: &Steps, p: usize) {
        let (first, end) = (self.parts[p].first, self.parts[p].end);
        let mut at = 0_u32;
        for n in first..end {
            let step = &steps.list[n];
            // The nops before the instruction aligned it, to a quarter of a cache line, so the copy is
            // aligned too.
            let aligned =
                n > first && step.ip.is_multiple_of(ALIGN.into()) && !self.dropped[n] && self.dropped[n - 1];
            let padding = if aligned { at.next_multiple_of(ALIGN) - at } else { 0 };
            self.padding[n] = padding as u8;
            self.offsets[n] = at + padding;
            at = self.offsets[n] + u32::from(self.counters[n]) + self.size(step, n);
        }
        self.parts[p].len = at + if self.parts[p].goes_on.is_some() { NEAR_JUMP } else { 0 };
    }

    /// Returns the bytes that an instruction takes in the copy.
    fn size(&self, step: &Step, n: usize) -> u32 {
        let len = u32::from(step.len);
        match (step.way, self.far[n]) {
            _ if self.dropped[n] => 0,
            (Way::Jump(_), false) | (Way::Conditional(_), false) => 2,
            (Way::Jump(_), true) => NEAR_JUMP,
            (Way::Conditional(_), true) => 6,
            // The short branch skips a jump, or reaches a near jump to the target.
            (Way::Loop(_), true) => len + 2 + NEAR_JUMP,
            (Way::JumpIndirect, _) => len + COMPARE * self.compared.len() as u32,
            (Way::CallWithOriginalReturn(Some(_)), _) => PUSH_ORIGINAL_LEN + NEAR_JUMP + WORD,
            (Way::CallWithOriginalReturn(None), _) => PUSH_ORIGINAL_LEN + NEAR_JUMP + 1 + WORD,
            _ => len,
        }
    }

    /// Returns the number of parts.
    pub(super) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Places a part at the first aligned offset from `next` on. Returns the first free offset after it.
    pub(super) fn place(&mut self, part: usize, next: u32) -> u32 {
        let Some(part) = self.parts.get_mut(part) else { return next };
        part.at = next.next_multiple_of(ALIGN);
        // The return address of a call at the part's end is the first byte after it, which must not belong
        // to another part.
        part.at + part.len + 1
    }

    /// Returns the offset in the copies of the code that replaces an instruction.
    pub(super) fn offset(&self, n: usize) -> u32 {
        self.parts[usize::from(self.part_of[n])].at + self.offsets[n]
    }

    /// Returns the offset in the copies of the first byte after an instruction.
    pub(super) fn behind(&self, n: usize) -> u32 {
        // This is the next instruction's place, without the padding before it.
        match self.offsets.get(n + 1).filter(|_| self.part_of[n + 1] == self.part_of[n]) {
            Some(next) => self.parts[usize::from(self.part_of[n])].at + next - u32::from(self.padding[n + 1]),
            None => {
                let part = &self.parts[usize::from(self.part_of[n])];
                part.at + part.len - if part.goes_on.is_some() { NEAR_JUMP } else { 0 }
            }
        }
    }

    /// Returns the offset and the end of a part.
    pub(super) fn range(&self, part: usize) -> (u32, u32) {
        let part = &self.parts[part];
        (part.at, part.at + part.len)
    }

    /// Returns the added code that moves the stack pointer: the step, the offset in the copies, and by how
    /// many bytes the stack pointer is then lower than in the original.
    pub(super) fn moves<'a>(&'a self, steps: &'a Steps) -> impl Iterator<Item = (usize, u32, i64)> + 'a {
        (0..self.counters.len()).flat_map(|n| {
            let keeper = self.keeps[n].then(|| (self.offset(n), keep_frames(self.counters[n].into())));
            let has_original =
                matches!(steps.list[n].way, Way::CallWithOriginalReturn(_)) && !self.dropped[n];
            let call =
                has_original.then(|| (self.offset(n) + u32::from(self.counters[n]), PUSH_ORIGINAL_FRAMES));
            let jumps = steps.list[n].way == Way::JumpIndirect && !self.dropped[n];
            let compared = if jumps { self.compared.len() as u32 } else { 0 };
            let first = self.offset(n) + u32::from(self.counters[n]);
            let comparisons = (0..compared).map(move |k| (first + COMPARE * k, COMPARE_FRAMES));
            let all = keeper.into_iter().chain(call).chain(comparisons);
            all.flat_map(move |(at, frames)| frames.map(|(offset, by)| (n, at + offset, by)))
        })
    }

    /// Writes the copy. See [`Unit::write`](crate::blocks::unit::Unit::write); `site.counters` is the offset
    /// of the unit's first counter.
    /// # Errors
    /// Returns [`Uncounted::NotRelocatable`] if something is out of reach.
    pub(super) fn write(
        &self,
        image: &Image,
        steps: &Steps,
        graph: &Graph,
        bytes: &mut [u8],
        site: Site,
        elsewhere: &dyn Fn(Option<u64>, u64) -> u64,
    ) -> Result<Words, Uncounted> {
        let mut writer = Writer { bytes, site, at: 0, words: Words::default() };
        for block in &graph.blocks {
            for n in block.first..block.end {
                writer.at = self.offset(n) - u32::from(self.padding[n]);
                writer.pad(self.padding[n].into());
                if block.place == n {
                    let place = site.counters + COUNTER * u64::from(block.counter.unwrap_or(0));
                    writer.add(block.added(), place).ok_or(Uncounted::NotRelocatable)?;
                }
                if !self.dropped[n] {
                    self.instruction(image, steps, n, &mut writer, elsewhere)
                        .ok_or(Uncounted::NotRelocatable)?;
                }
            }
        }
        for part in &self.parts {
            if let Some(to) = part.goes_on {
                writer.at = part.at + part.len - NEAR_JUMP;
                writer.put(&[0xe9]);
                writer.displacement(elsewhere(None, to)).ok_or(Uncounted::NotRelocatable)?;
            }
        }
        Ok(writer.words)
    }

    /// Writes the code that replaces an instruction. Returns `None` if something is out of reach.
    fn instruction(
        &self,
        image: &Image,
        steps: &Steps,
        n: usize,
        out: &mut Writer,
        elsewhere: &dyn Fn(Option<u64>, u64) -> u64,
    ) -> Option<()> {
        let step = &steps.list[n];
        let code = image.code_at(step.ip, step.len.into())?;
        let base = out.site.base;
        let goal = |to: u64| match steps.at(to) {
            Some(own) => base.wrapping_add(self.offset(own).into()),
            None => elsewhere(Some(step.ip), to),
        };
        if step.way == Way::JumpIndirect {
            for &target in &self.compared {
                out.compare(step.ip, code, target, goal(target))?;
            }
        }
        match step.way {
            Way::Jump(to) => {
                let goal = goal(to);
                if self.far[n] {
                    out.put(&[0xe9]);
                    return out.displacement(goal);
                }
                out.put(&[0xeb]);
                out.short(goal)
            }
            Way::Conditional(to) => {
                let goal = goal(to);
                // The encoding is 70+cc rel8, or 0f 80+cc rel32.
                let wide = code.len() >= 6 && code[code.len() - 6] == 0x0f;
                let condition = code[code.len() - if wide { 5 } else { 2 }] & 0xf;
                if self.far[n] {
                    out.put(&[0x0f, 0x80 | condition]);
                    return out.displacement(goal);
                }
                out.put(&[0x70 | condition]);
                out.short(goal)
            }
            Way::Loop(to) => {
                let goal = goal(to);
                let (_, opcode) = code.split_last()?;
                out.put(opcode);
                if !self.far[n] {
                    return out.short(goal);
                }
                out.put(&[2, 0xeb, NEAR_JUMP as u8, 0xe9]);
                out.displacement(goal)
            }
            Way::Begin(to) => {
                let goal = goal(to);
                out.put(&code[..code.len() - 4]);
                out.displacement(goal)
            }
            Way::CallWithOriginalReturn(to) => {
                let jump = if to.is_some() { NEAR_JUMP } else { NEAR_JUMP + 1 };
                out.put(&PUSH_ORIGINAL);
                out.put(&jump.to_le_bytes());
                match to {
                    Some(to) => {
                        out.put(&[0xe9]);
                        out.displacement(elsewhere(Some(step.ip), to))?;
                    }
                    None => {
                        let hole = usize::from(step.operand);
                        let old = i32::from_le_bytes(code.get(hole..hole + 4)?.try_into().ok()?);
                        out.put(&[0xff, 0x25]);
                        out.displacement(step.end().wrapping_add(old as u64))?;
                    }
                }
                out.words.addresses.push(out.at);
                out.put(&step.end().to_le_bytes());
                Some(())
            }
            Way::Call(to) => {
                let goal = elsewhere(Some(step.ip), to);
                out.put(&code[..code.len() - 4]);
                out.displacement(goal)
            }
            _ => {
                let at = out.at;
                out.put(code);
                if step.operand == 0 {
                    return Some(());
                }
                let hole = usize::from(step.operand);
                let old = i32::from_le_bytes(code.get(hole..hole + 4)?.try_into().ok()?);
                let operand = step.end().wrapping_add(old as u64);
                let end = base.wrapping_add(out.at.into());
                let new = i32::try_from(operand.wrapping_sub(end) as i64).ok()?;
                out.words.text.push(at + u32::from(step.operand));
                let hole = at as usize + hole;
                out.bytes[hole..hole + 4].copy_from_slice(&new.to_le_bytes());
                Some(())
            }
        }
    }
}
