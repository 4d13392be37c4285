//! What has been seen of one function's instructions, and the way over those that tell nothing.

use crate::flow::facts::FunctionFlow;
use crate::flow::head::hook_point;
use crate::flow::registers::scan::Scan;
use crate::flow::return_slot::watch::Watch;
use crate::x86::predecode::fields::{Class, WINDOW};
use crate::x86::predecode::skim::{Interest, Skimmed, skim};
use gprofinject_image::{Image, ImageKind};
use std::ops::Range;

/// What has been seen of a function's instructions.
pub(crate) struct Seen {
    pub(crate) index: u32,
    /// The function's first byte, and the one behind it.
    pub(crate) lo: u64,
    pub(crate) hi: u64,
    pub(crate) hook: u64,
    pub(crate) flow: FunctionFlow,
    pub(crate) scan: Scan,
    pub(crate) watch: Watch,
    /// Addresses of data that may be jump tables.
    pub(crate) tables: Vec<u64>,
    pub(crate) indirect_jump: bool,
    /// It computes its own address.
    pub(crate) own_start: bool,
    /// The last instruction's; `Return` also of others that control does not go on behind.
    pub(crate) last: Class,
    pub(crate) interest: Interest,
    /// Instructions may refer to addresses by immediate operands.
    pub(crate) has_addresses: bool,
    /// Every instruction is of interest.
    pub(crate) is_careful: bool,
}

impl Seen {
    pub(crate) fn new(image: &Image, index: usize) -> Seen {
        let f = &image.functions[index];
        Seen {
            index: index as u32,
            lo: f.address,
            hi: f.address + f.size,
            hook: hook_point(image, f),
            flow: FunctionFlow { leaf: true, ..Default::default() },
            scan: Scan::new(f.address, f.size),
            watch: Watch::new(f.kind),
            tables: Vec::new(),
            indirect_jump: false,
            own_start: false,
            last: Class::Return,
            interest: Interest::NONE,
            has_addresses: image.kind != ImageKind::Pie,
            is_careful: true,
        }
    }

    /// Passes over plain instructions, from a position in the function on. Answers with the position of another one and
    /// what it is.
    #[inline(always)]
    pub(crate) fn pass_over(
        &mut self,
        bytes: &[u8],
        behind: &[u8],
        mut at: usize,
        addresses: &Range<u64>,
    ) -> (usize, Skimmed) {
        // Neither at an address that is waited for nor behind the function's end.
        let stop = self.scan.stop().saturating_sub(self.lo).min(bytes.len() as u64) as usize;
        let harmless = |base, displacement| self.watch.is_harmless(base, displacement);
        while at < stop
            && let Some(window) = behind.get(at..).and_then(<[u8]>::first_chunk::<WINDOW>)
        {
            let len = match skim(window, self.interest, addresses, harmless) {
                Skimmed::Plain(len) if at + len <= bytes.len() => len,
                Skimmed::Plain(_) | Skimmed::Other => break,
                other => return (at, other),
            };
            self.flow.head.pass(Class::Next, self.lo + at as u64, len as u8, false, self.hook);
            at += len;
            self.last = Class::Next;
        }
        (at, Skimmed::Other)
    }

    #[inline(always)]
    pub(crate) fn note_interest(&mut self) {
        let stack = self.watch.interest();
        self.is_careful = stack.is_none();
        if let Some(stack) = stack {
            self.interest = Interest { stack, others: self.scan.interest() };
        }
    }
}
