//! Functions of a standalone program that the agent has to know of, because nothing can be interposed in it.
//!
//! An unwinder in the program looks up the description of an address by the program's own `_dl_find_object` or
//! `dl_iterate_phdr`, which do not know the arena, and `longjmp` leaves frames. So the bodies of these functions begin with
//! a jump through the agent. They are hooked for that even if the user has not selected them.
//!
//! Where exits are hooked and an unwinder would not find its way, because these functions have no names or cannot be
//! hooked, only entries are hooked.

use crate::decide::hook::Hook;
use crate::decide::own_return::JUMPS;
use crate::decide::unwinder::{self, ThroughAgent};
use crate::flow::read::unread::between_functions;
use gprofinject_abi::plan::ArenaHeader;
use gprofinject_image::x86::falls_through;
use gprofinject_image::{Function, FunctionKind, Image};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};
use std::mem::offset_of;
use std::ops::{Range, RangeInclusive};

/// The functions by which an unwinder looks up a description, and the offset of the address to jump to.
const LOOKUPS: [(&str, usize); 2] = [
    ("_dl_find_object", offset_of!(ArenaHeader, find_object)),
    ("dl_iterate_phdr", offset_of!(ArenaHeader, iterate)),
];

/// PT_GNU_EH_FRAME. Unwinders look for the program header with this type, as does the C library's `_dl_find_object`.
const HEADER_TYPE: [u8; 4] = 0x6474_e550_u32.to_le_bytes();
/// The second to ninth byte of the C library's signal restorer, by which libgcc's unwinder recognises it.
const RESTORER: [u8; 8] = 0x050f_0000_000f_c0c7_u64.to_le_bytes();

/// What the agent has to know of a standalone program with exit hooks.
#[derive(Debug, Default)]
pub(crate) struct Standalone {
    /// The functions that are called through the agent, by their indices in the image, each with the offset of the
    /// address to jump to.
    gates: Vec<(usize, usize)>,
    /// Whether an unwinder may run.
    unwinds: bool,
    /// Whether code between functions, where nothing can be hooked, may leave frames.
    jumps_unseen: bool,
}

impl Standalone {
    /// Looks for the functions. With `exits`, exits are to be hooked; without it, nothing forbids that.
    pub(crate) fn of(image: &Image, exits: bool) -> Standalone {
        /// The longest function, in bytes, in whose code a longjmp is looked for.
        const LONGEST: u64 = 512;
        let mut gates = Vec::new();
        let is_function = |f: &Function| !matches!(f.kind, FunctionKind::Cold(_));
        for (i, f) in image.functions.iter().enumerate().filter(|(_, f)| is_function(f)) {
            let lookup = LOOKUPS.iter().find(|(name, _)| f.names().any(|n| n == *name));
            // Where jumps have no names, the one is found that does it for the others, by its code.
            if let Some(&(_, gate)) = lookup {
                gates.push((i, gate));
            } else if f.names().any(|name| JUMPS.contains(&name))
                || exits
                    && !image.facts.has_symtab
                    && f.size <= LONGEST
                    && leaves_frames(image, &(f.address..f.address + f.size))
            {
                gates.push((i, offset_of!(ArenaHeader, jump)));
            }
        }
        // Landing pads are of use only to an unwinder.
        let unwinds = exits
            && (image.facts.own_unwinder
                || !image.details().landing_pads.is_empty()
                || names_unwind_data(image));
        let jumps_unseen = exits && between_functions(image).iter().any(|gap| leaves_frames(image, gap));
        Standalone { gates, unwinds, jumps_unseen }
    }

    /// Returns whether a function must be hooked although the user has not selected it.
    pub(crate) fn is_needed(&self, image: &Image, function: usize) -> bool {
        self.gates.iter().any(|&(gate, _)| gate == function) || unwinder::is_needed(image, function)
    }

    /// Returns the hooked functions that are called through the agent, apart from those of the unwinder itself.
    pub(crate) fn through_agent<'a>(&'a self, hooks: &'a [Hook]) -> impl Iterator<Item = ThroughAgent> + 'a {
        self.gates.iter().filter_map(|&(function, gate)| {
            let number = hooks.binary_search_by_key(&function, |hook| hook.function).ok()?;
            Some(ThroughAgent { number, helper: None, gate })
        })
    }

    /// Returns why exits must not be hooked, as text for the user, or `None` if they may be.
    pub(crate) fn forbids_exits(&self, image: &Image, hooks: &[Hook]) -> Option<String> {
        let is_hooked = |function: usize| hooks.binary_search_by_key(&function, |hook| hook.function).is_ok();
        let all =
            |wanted: &dyn Fn(usize) -> bool| (0..image.functions.len()).filter(|&i| wanted(i)).all(is_hooked);
        let (jump, rest) = (offset_of!(ArenaHeader, jump), "only entries are hooked");
        // The C library of a program with a dynamic linker is a library, and has these functions.
        let is_dynamic = image.facts.interpreter.is_some();
        if self.unwinds && !is_dynamic && !self.gates.iter().any(|&(_, gate)| gate != jump) {
            let what = match image.facts.has_symtab {
                true => "no function that gprofinject knows",
                false => "functions without names (a debug file has them)",
            };
            return Some(format!(
                "it contains an unwinder, which looks up return addresses by {what}: {rest}"
            ));
        }
        if self.jumps_unseen {
            return Some(format!("it contains a longjmp that is in no known function: {rest}"));
        }
        if !all(&|i| self.is_needed(image, i)) {
            return Some(format!("a function of its unwinder, or its longjmp, cannot be hooked: {rest}"));
        }
        None
    }
}

/// Returns whether code contains one of the numbers by which unwinders find their data: [`HEADER_TYPE`], or [`RESTORER`] as
/// the operand of a `movabs`. The restorer itself has another byte before it.
fn names_unwind_data(image: &Image) -> bool {
    const MOVABS: RangeInclusive<u8> = 0xb8..=0xbf;
    let is_in = |bytes: &[u8]| {
        bytes.windows(HEADER_TYPE.len()).enumerate().any(|(at, word)| {
            let is_restorer = || {
                let before = at.checked_sub(1).map(|before| bytes[before]);
                bytes[at..].starts_with(&RESTORER) && before.is_some_and(|before| MOVABS.contains(&before))
            };
            word == HEADER_TYPE || word == &RESTORER[..HEADER_TYPE.len()] && is_restorer()
        })
    };
    image.code.iter().any(|code| is_in(&code.bytes))
}

/// Returns whether code loads the registers that a callee preserves, and the stack pointer, from a buffer, and then jumps
/// to an address: C libraries' `longjmp`.
fn leaves_frames(image: &Image, range: &Range<u64>) -> bool {
    const PRESERVED: [Register; 6] =
        [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];
    // glibc encrypts the frame pointer, and loads it by way of another register.
    const LEAST: u32 = 5;
    let bytes = image.code_at(range.start, range.end - range.start).unwrap_or_default();
    let (mut loaded, mut moves_stack) = (0_u32, false);
    let mut i = Instruction::default();
    let mut decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
    while decoder.can_decode() {
        decoder.decode_out(&mut i);
        if i.code() == Code::Mov_r64_rm64 || i.code() == Code::Mov_rm64_r64 {
            let to = if i.op0_kind() == OpKind::Register { i.op0_register() } else { Register::None };
            let is_load = i.op1_kind() == OpKind::Memory && i.memory_base() == Register::RDI;
            if let Some(n) = PRESERVED.iter().position(|&register| register == to && is_load) {
                loaded |= 1 << n;
            }
            moves_stack |= to == Register::RSP;
        }
        if i.flow_control() == FlowControl::IndirectBranch && moves_stack && loaded.count_ones() >= LEAST {
            return true;
        }
        if !falls_through(&i) {
            (loaded, moves_stack) = (0, false);
        }
    }
    false
}

#[cfg(test)]
mod tests;
