//! The state of the pass over one function's instructions, and the fast path over irrelevant instructions.

use crate::flow::facts::FunctionFlow;
use crate::flow::head::hook_point;
use crate::flow::registers::scan::Scan;
use crate::flow::return_slot::watch::Watch;
use crate::x86::predecode::fields::{Class, WINDOW};
use crate::x86::predecode::skim::{Interest, Skimmed, skim};
use gprofinject_image::{ElfType, Image};
use std::ops::Range;

/// The state of the pass over one function's instructions.
pub(crate) struct Seen {
    /// The function's index in the image.
    pub(crate) index: u32,
    /// The function's first byte.
    pub(crate) lo: u64,
    /// The first byte after the function.
    pub(crate) hi: u64,
    /// The address at which a hook would be written: see [`hook_point`].
    pub(crate) hook: u64,
    /// The facts about the function.
    pub(crate) flow: FunctionFlow,
    /// Follows r10, r11 and rax.
    pub(crate) scan: Scan,
    /// Follows the stack pointer.
    pub(crate) watch: Watch,
    /// Addresses of data that may be jump tables.
    pub(crate) tables: Vec<u64>,
    /// Whether the function has an indirect jump.
    pub(crate) indirect_jump: bool,
    /// Whether the function computes its own address.
    pub(crate) own_start: bool,
    /// The class of the last instruction. `Return` also represents every instruction that iced has decoded
    /// and after which control does not continue.
    pub(crate) last: Class,
    /// The registers that are followed.
    pub(crate) interest: Interest,
    /// Whether immediate operands may be addresses.
    pub(crate) has_addresses: bool,
    /// Whether every instruction has to be examined, because the followed registers are not known.
    pub(crate) is_careful: bool,
}

impl Seen {
    /// Returns the state at the start of function `index`.
    pub(crate) fn new(image: &Image, index: usize) -> Seen {
        let f = &image.functions[index];
        Seen {
            index: index as u32,
            lo: f.address,
            hi: f.address + f.size,
            hook: hook_point(image, f),
            flow: FunctionFlow { leaf: true, leaves_directly: true, ..Default::default() },
            scan: Scan::new(f.address, f.size, image.facts.tls_descriptors),
            watch: Watch::new(f.kind),
            tables: Vec::new(),
            indirect_jump: false,
            own_start: false,
            last: Class::Return,
            interest: Interest::NONE,
            has_addresses: image.elf_type != ElfType::Dyn,
            is_careful: true,
        }
    }

    /// Skips plain instructions, from position `at` in the function on. Returns the position of the first
    /// instruction that is not plain, and what skimming found about it.
    #[inline(always)]
    pub(crate) fn pass_over(
        &mut self,
        bytes: &[u8],
        behind: &[u8],
        mut at: usize,
        addresses: &Range<u64>,
    ) -> (usize, Skimmed) {
        // Neither the function's end nor an address that the scan waits for may be skipped over.
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

    /// Updates the registers that are followed.
    #[inline(always)]
    pub(crate) fn note_interest(&mut self) {
        let stack = self.watch.interest();
        self.is_careful = stack.is_none();
        if let Some(stack) = stack {
            self.interest = Interest { stack, others: self.scan.interest() };
        }
    }
}
