//! Thunks of tail calls: jumps from one hooked function to the start of another.

use super::code::{LOAD_RAX, STUB, Values};
use super::{Emitter, Input};
use crate::slots::Home;
use crate::tactic::JUMP;
use crate::tails::Tail;
use crate::template::{Kind, LINE, Second, Template};
use gprofinject_abi::plan::{ArenaHeader, TailRecord};
use gprofinject_abi::region::Slot;
use std::collections::HashMap;
use std::mem::offset_of;

/// `mov r11, [rsp-16]`.
const RESTORE_R11: [u8; 5] = [0x4c, 0x8b, 0x5c, 0x24, 0xf0];
/// Bytes of a tail call's stubs: [`super::Writer::stub`], and what restores both, with a near jump.
pub(super) const STUBS: usize = STUB + LOAD_RAX[1].len() + RESTORE_R11.len() + JUMP as usize;

/// Bytes from one thunk to the next: room for the largest.
pub(super) fn pitch() -> usize {
    Template::tail(Kind::LARGEST).bytes.len().next_multiple_of(LINE)
}

/// Where the tail calls' thunks and stubs are.
pub(super) struct Tails {
    /// First byte of the thunks, and of the stubs.
    thunks: usize,
    stubs: usize,
    pitch: usize,
    /// Sites of tail calls that are relocated with their function's first instructions, and the indices
    /// of their thunks.
    moved: HashMap<u64, usize>,
    /// The same of all sites, where functions are copied.
    sites: HashMap<u64, usize>,
}

impl Tails {
    pub(super) fn new(thunks: usize, stubs: usize, tails: &[Tail], copies: bool) -> Tails {
        let relocated = tails.iter().zip(0..).filter(|(tail, _)| tail.relocated);
        let moved = relocated.map(|(tail, index)| (tail.branch.site, index)).collect();
        let all = tails.iter().zip(0..).filter(|_| copies).map(|(tail, index)| (tail.branch.site, index));
        Tails { thunks, stubs, pitch: pitch(), moved, sites: all.collect() }
    }

    /// Arena offset of all this.
    pub(super) fn start(&self) -> usize {
        self.thunks
    }

    fn thunk(&self, index: usize) -> usize {
        self.thunks + index * self.pitch
    }

    /// The thunk for a jump among relocated instructions.
    pub(super) fn moved(&self, site: u64) -> Option<usize> {
        self.moved.get(&site).map(|&index| self.thunk(index))
    }
}

impl Tails {
    /// The thunk for a jump in a copied function.
    pub(super) fn of_site(&self, site: u64) -> Option<usize> {
        self.sites.get(&site).map(|&index| self.thunk(index))
    }
}

impl Emitter<'_, '_> {
    pub(super) fn tail_calls(&mut self) {
        let Input { tails, homes, .. } = self.layout.input;
        // By `Kind::index`; empty where no callee is of that kind.
        let mut templates = vec![Template::default(); Kind::COUNT];
        let mut first = 0;
        for (i, tail) in tails.iter().enumerate() {
            if tails[first].callee != tail.callee {
                first = i;
            }
            let slot = homes.of(tail.callee as usize).tails() + (i - first) as u32 * size_of::<Slot>() as u32;
            let kind = self.layout.kinds[tail.callee as usize];
            let template = &mut templates[kind.index()];
            if template.bytes.is_empty() {
                *template = Template::tail(kind);
            }
            self.tail_call(i, tail, kind, template, Home { offset: slot, ..Home::default() });
        }
    }

    /// `home` is the tail call's own slot.
    fn tail_call(&mut self, index: usize, tail: &Tail, kind: Kind, template: &Template, home: Home) {
        let callee = self.out.records[tail.callee as usize];
        let thunk = self.thunks[tail.callee as usize];
        let layout = self.layout;
        let at = layout.tails.thunk(index);
        let miss = layout.tails.stubs + index * STUBS;
        let outside = miss + STUB;
        let values = Values {
            home,
            number: tail.callee,
            site: tail.branch.site as u32,
            miss,
            outside,
            exit: outside,
            body: callee.body as usize,
        };
        let code = &mut self.code;
        code.fill(template, at, &values);
        code.stub(miss, index as u32, offset_of!(ArenaHeader, tail), kind.second, false);
        // As if the jump had not been touched.
        let mut jump = outside;
        if kind.second != Second::Free {
            code.put(jump, &LOAD_RAX[1]);
            jump += LOAD_RAX[1].len();
        }
        if kind.second == Second::Kept {
            code.put(jump, &RESTORE_R11);
            jump += RESTORE_R11.len();
        }
        code.jump(jump, thunk);
        self.out.tails.push(TailRecord {
            site: tail.branch.site,
            slot: home.offset,
            callee: tail.callee,
            again: at as u32,
            thunk: thunk as u32,
        });
        self.out.owners.push((at as u32, tail.callee));
        if !tail.relocated && !layout.is_copied(tail.branch.function as usize) {
            let displacement = (self.address(at).wrapping_sub(tail.branch.end()) as u32).to_le_bytes();
            self.out.patches.extend(layout.patch(tail.branch.end() - 4, &displacement));
        }
    }
}
