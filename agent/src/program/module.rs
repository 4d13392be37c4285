//! The facts about one ELF object whose functions are hooked: the program, or a library.
//!
//! The records of plans have link addresses: `bias` is what is added to get runtime addresses.

use crate::program::interned;
use core::sync::atomic::Ordering;
use gprofinject_abi::plan::{
    ArenaHeader, CALL_LEN, CallJump, CodeRange, CounterRange, EXIT_JUMPS, Frame, FunctionRecord, Original,
    Patch, TailRecord,
};

/// Addresses are runtime addresses unless a field documents otherwise.
#[derive(Clone, Copy)]
pub(crate) struct Module {
    pub(crate) functions: &'static [FunctionRecord],
    /// The number of the first function.
    pub(crate) first: u32,
    pub(crate) tails: &'static [TailRecord],
    /// The code of hooked functions; the addresses are relative to `bias`.
    pub(crate) hooked: &'static [CodeRange],
    /// Maps each place in a copied function to the instruction of the program that it replaces.
    pub(crate) originals: &'static [Original],
    /// The addresses are relative to `bias`.
    pub(crate) patches: &'static [Patch],
    pub(crate) call_jumps: &'static [CallJump],
    /// By function: the basic block counters that a thread needs once it has come through the hook. Empty unless the module
    /// is a library whose basic blocks are counted.
    pub(crate) counters: &'static [CounterRange],
    /// How the arguments and results of the functions are read, if they are traced: see [`gprofinject_abi::args::Fetches`].
    pub(crate) fetches: &'static [u64],
    /// The end of the library's basic block counters in a thread block, or 0.
    pub(crate) counters_end: u64,
    /// The program headers: address, size of one in bytes, number. They are separate from the auxiliary vector,
    /// because the program may overwrite that.
    pub(crate) headers: (u64, u64, u64),
    /// The address to which the offsets in function and tail records are relative: the start of the program's arena, or an address below
    /// the arenas of all libraries, whose records are one table.
    pub(crate) base: u64,
    pub(crate) arena_lo: u64,
    /// The end of the thunks, and start of the copies of counted functions.
    pub(crate) arena_hi: u64,
    /// The end of the copies and of the arena.
    pub(crate) copies_hi: u64,
    /// Offsets in the module's arena; see [`gprofinject_abi::plan::PlanHeader`], here and for the next three.
    pub(crate) frame_tables: [u32; gprofinject_abi::plan::FRAMES],
    pub(crate) stubs: u32,
    pub(crate) stub_len: u32,
    pub(crate) tail_code: u32,
    pub(crate) text_lo: u64,
    pub(crate) text_hi: u64,
    /// What is added to an address of a record to get the runtime address.
    pub(crate) bias: u64,
    /// Runtime address minus link address, for the addresses in the program headers.
    pub(crate) load_bias: u64,
    /// Whether only outer calls are measured.
    pub(crate) outer: bool,
    /// Whether only calls from outside of the module are counted.
    pub(crate) outermost: bool,
}

impl Module {
    /// A module without functions.
    pub(crate) const NONE: Module = Module {
        functions: &[],
        first: 0,
        tails: &[],
        hooked: &[],
        originals: &[],
        patches: &[],
        call_jumps: &[],
        fetches: &[],
        counters: &[],
        counters_end: 0,
        headers: (0, 0, 0),
        base: 0,
        arena_lo: 0,
        arena_hi: 0,
        copies_hi: 0,
        frame_tables: [0; gprofinject_abi::plan::FRAMES],
        stubs: 0,
        stub_len: 0,
        tail_code: 0,
        text_lo: 0,
        text_hi: 0,
        bias: 0,
        load_bias: 0,
        outer: false,
        outermost: false,
    };

    /// Returns the address of the unwind table for a kind of place in the arena: an `.eh_frame_hdr`.
    pub(crate) fn frame_table(&self, frame: Frame) -> u64 {
        let [left, called, popped, moved, plain, copied, cave, interned, interned_plain] = self.frame_tables;
        let table = match frame {
            Frame::Left => left,
            Frame::Called => called,
            Frame::Popped => popped,
            Frame::Moved => moved,
            Frame::LeftPlain => plain,
            Frame::Copied => copied,
            Frame::Cave => cave,
            Frame::Interned => interned,
            Frame::InternedPlain => interned_plain,
        };
        self.arena_lo + u64::from(table)
    }

    /// Returns whether an address lies in the thunks. A return slot that contains such an address is that of a live
    /// frame.
    pub(crate) fn in_arena(&self, address: u64) -> bool {
        (self.arena_lo..self.arena_hi).contains(&address)
    }

    /// Returns the address in the program of the instruction that an address in a copied function replaces. Other
    /// addresses are returned unchanged. Integer code only; see [`crate::hot::gate`].
    pub(crate) fn original(&self, pc: u64) -> u64 {
        if !self.in_copies(pc) {
            return pc;
        }
        let offset = (pc - self.arena_lo) as u32;
        let after = self.originals.partition_point(|entry| entry.offset <= offset);
        let entry = after.checked_sub(1).and_then(|n| self.originals.get(n));
        entry.map_or(pc, |entry| self.text_lo.wrapping_add(entry.text.into()))
    }

    /// Returns the address in a Go program of the instruction that an address in the thunks or relocated instructions stands
    /// for: at that instruction the stack is the same. Other addresses are returned unchanged.
    pub(crate) fn relocated_from(&self, pc: u64) -> u64 {
        let offset = pc.wrapping_sub(self.arena_lo);
        if offset >= u64::from(self.stubs) {
            return pc;
        }
        let after = self.originals.partition_point(|entry| u64::from(entry.offset) <= offset);
        let entry = after.checked_sub(1).and_then(|n| self.originals.get(n));
        entry.map_or(pc, |entry| self.text_lo.wrapping_add(entry.text.into()))
    }

    /// Returns the address in a Go program that the runtime may take for the place at which a goroutine is preempted at `pc`:
    /// that of the original, if `pc` is a relocated instruction. Every register then has the value that it has before the
    /// original, and the goroutine can continue in the copy.
    ///
    /// Returns an address without code if the goroutine cannot be preempted there. At the start of a function's body, Go
    /// would take the address for one at which the call has not been counted yet. A patch outside of the function that runs
    /// (a cave) belongs to another one for Go.
    pub(crate) fn preempted_at(&self, pc: u64) -> u64 {
        let nowhere = self.arena_lo;
        let offset = pc.wrapping_sub(self.arena_lo);
        if offset >= u64::from(self.stubs) {
            let is_patch =
                self.patches.binary_search_by_key(&pc.wrapping_sub(self.bias), |p| p.address).is_ok();
            return if is_patch { nowhere } else { pc };
        }
        let after = self.originals.partition_point(|entry| u64::from(entry.offset) <= offset);
        let Some(entry) = after.checked_sub(1).and_then(|n| self.originals.get(n)) else { return nowhere };
        let is_inside = u64::from(entry.offset) != offset;
        let first = self.originals.partition_point(|other| other.text < entry.text);
        let is_start = first + 1 != after;
        let thunk = pc.wrapping_sub(self.base);
        let is_thunk = self.functions.binary_search_by_key(&thunk, |record| record.thunk.into()).is_ok();
        if is_inside || is_start || is_thunk { nowhere } else { self.text_lo.wrapping_add(entry.text.into()) }
    }

    /// Returns the function that runs if the program counter is at an address, if the address alone shows it: in the
    /// text, the copy or the body of a function that needs no cell, or on the way into or out of any function: at its first
    /// instruction, or in its patch, its thunk or its stubs. Integer code only; see [`crate::hot::gate`].
    pub(crate) fn running_at(&self, pc: u64) -> Option<u32> {
        // In a function that is copied, jumps lead to the copy.
        let pc = self.behind_jumps(pc);
        let pc = if self.in_copies(pc) { self.original(pc) } else { pc };
        let at = pc.wrapping_sub(self.arena_lo);
        if pc >= self.arena_lo && pc < self.arena_hi {
            return if at < u64::from(self.tail_code) { self.thunk_at(pc, at) } else { self.tail_at(pc) };
        }
        let address = pc.wrapping_sub(self.bias);
        let number = self.functions.partition_point(|record| record.entry <= address).checked_sub(1)?;
        let record = self.functions.get(number)?;
        let inside = address < record.entry + u64::from(record.size);
        let shown = address == record.entry || record.is_shown();
        (inside && shown).then_some(self.first + number as u32)
    }

    /// The same for an address in thunks and stubs, `at` bytes after the start of the arena.
    fn thunk_at(&self, pc: u64, at: u64) -> Option<u32> {
        let stubs = u64::from(self.stubs);
        let (number, shown) = if at >= stubs {
            ((at - stubs).checked_div(self.stub_len.into())? as usize, true)
        } else {
            // Functions are numbered by their addresses, and their thunks are in the same order.
            let offset = pc.wrapping_sub(self.base);
            let is_before = |record: &FunctionRecord| u64::from(record.thunk) <= offset;
            let number = self.functions.partition_point(is_before).checked_sub(1)?;
            (number, offset < self.functions.get(number)?.body.into())
        };
        let record = self.functions.get(number)?;
        (shown || record.is_shown()).then_some(self.first + number as u32)
    }

    /// The same for an address in the thunks and stubs of tail calls: the function that is called, if it or the function that
    /// jumps needs no cell.
    fn tail_at(&self, pc: u64) -> Option<u32> {
        /// Bytes of a thunk, and of a stub, at most.
        const THUNK: u64 = 192;
        const STUB: u64 = 24;
        let offset = pc.wrapping_sub(self.base);
        let thunk = |tail: &TailRecord| u64::from(tail.again);
        let stub = |tail: &TailRecord| u64::from(tail.stub);
        let before = |start: fn(&TailRecord) -> u64| self.tails.partition_point(|tail| start(tail) <= offset);
        let tail = |before: usize| self.tails.get(before.checked_sub(1)?);
        let is_thunk = |tail: &&TailRecord| offset - thunk(tail) < THUNK;
        let is_stub = |tail: &&TailRecord| offset - stub(tail) < STUB;
        let found = match tail(before(thunk)).filter(is_thunk) {
            Some(tail) => tail,
            None => tail(before(stub)).filter(is_stub)?,
        };
        let record = self.functions.get(found.callee.checked_sub(self.first)? as usize)?;
        (record.is_shown() || found.fills != 0).then_some(found.callee)
    }

    /// Returns whether the instruction at an address is the jump with which the thunk of a tail call leads to the callee's
    /// thunk, which fills the cell.
    pub(crate) fn fills_cell_at(&self, pc: u64) -> bool {
        let offset = pc.wrapping_sub(self.base);
        let before = self.tails.partition_point(|tail| u64::from(tail.again) <= offset);
        let tail = before.checked_sub(1).and_then(|number| self.tails.get(number));
        let len = u64::from(CALL_LEN);
        tail.is_some_and(|tail| tail.fills != 0 && offset.wrapping_sub(tail.fills.into()) < len)
    }

    /// Returns where control arrives from an address through the jumps of patches: a function's first bytes may be a short
    /// jump to a near one, which lies among the bytes of another function.
    fn behind_jumps(&self, pc: u64) -> u64 {
        const NEAR: u8 = 0xe9;
        const SHORT: u8 = 0xeb;
        let mut at = pc;
        for _ in 0..2 {
            let address = at.wrapping_sub(self.bias);
            let Ok(found) = self.patches.binary_search_by_key(&address, |patch| patch.address) else { break };
            let Some(patch) = self.patches.get(found) else { break };
            let [first, a, b, c, d, ..] = patch.replacement;
            at = if first == NEAR && patch.len == 5 {
                at.wrapping_add(5).wrapping_add(i32::from_le_bytes([a, b, c, d]) as u64)
            } else if first == SHORT && patch.len == 2 {
                at.wrapping_add(2).wrapping_add(a as i8 as u64)
            } else {
                break;
            };
        }
        at
    }

    /// Returns whether an address lies in the jumps to the slow path of exits, with which the code of the arena begins, or in
    /// that of interned labels. There, rsp is the CFA of the frame that returns.
    pub(crate) fn is_exit_jump(&self, pc: u64) -> bool {
        let at = pc.wrapping_sub(self.arena_lo);
        let first = size_of::<ArenaHeader>() as u64;
        pc >= self.arena_lo && at >= first && at < first + EXIT_JUMPS as u64 || interned::at(pc).is_some()
    }

    /// Returns the number of the hooked function that contains an address, which is relative to `bias`. Separate parts
    /// of a function do not count.
    pub(crate) fn function_at(&self, address: u64) -> Option<u32> {
        let number = self.functions.partition_point(|record| record.entry <= address).checked_sub(1)?;
        let record = self.functions.get(number)?;
        (address < record.entry + u64::from(record.size)).then_some(self.first + number as u32)
    }

    /// Returns the number of the function to whose thunk an exit label of this module belongs. Integer code only; see
    /// [`crate::hot::gate`].
    pub(crate) fn function_of_label(&self, label: u64) -> Option<u32> {
        if let Some(entry) = interned::at(label) {
            let number = entry.function().load(Ordering::Relaxed).wrapping_sub(1);
            let is_own = (number.wrapping_sub(self.first) as usize) < self.functions.len();
            return is_own.then_some(number);
        }
        let offset = label.wrapping_sub(self.base);
        let after = self.functions.partition_point(|record| u64::from(record.thunk) <= offset);
        after.checked_sub(1).map(|number| self.first + number as u32)
    }

    /// Returns whether an address lies in the copy of a counted function.
    pub(crate) fn in_copies(&self, address: u64) -> bool {
        (self.arena_hi..self.copies_hi).contains(&address)
    }

    /// Returns whether a return address is in the program's text or in a copy. It may be the first byte after the
    /// text. The arena may lie in a gap of the text and does not belong to it.
    pub(crate) fn in_text(&self, return_address: u64) -> bool {
        let is_within = return_address > self.text_lo && return_address <= self.text_hi;
        is_within && !self.in_arena(return_address) || self.in_copies(return_address)
    }

    /// Returns whether a return address lies in code of a hooked function.
    pub(crate) fn is_hooked(&self, return_address: u64) -> bool {
        let address = return_address.wrapping_sub(self.bias);
        let after = self.hooked.partition_point(|range| range.hi <= address);
        self.hooked.get(after).is_some_and(|range| range.lo <= address)
    }
}
