//! The instructions of a unit: a function and its cold parts, of which every one is known, or none is counted.
//!
//! Decoding is linear, as compilers emit code. What breaks that rule (data between instructions, branches into the
//! middle of one) is a reason not to count the function.

use crate::blocks::uncounted::Uncounted;
use crate::flow::facts::Flow;
use crate::x86::relocate::instructions::is_ambiguous;
use gprofinject_image::x86::{has_branch, is_call, is_nop};
use gprofinject_image::{Image, ImageKind};
use iced_x86::{
    Code, ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
    RflagsBits,
};

/// The flags that `inc` changes.
pub(crate) const COUNTER_FLAGS: u8 =
    (RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::PF) as u8;
/// Those that a comparison changes.
const FLAGS: u32 = COUNTER_FLAGS as u32 | RflagsBits::CF;

/// A stretch of code with a symbol of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(super) lo: u64,
    pub(super) hi: u64,
    /// Its steps.
    pub(super) first: usize,
    pub(super) end: usize,
}

/// Where control goes from an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Next,
    /// Does nothing.
    Nop,
    Jump(u64),
    Conditional(u64),
    /// loop, jrcxz and their like: only with a short displacement.
    Loop(u64),
    /// xbegin: goes on, and may come to the target.
    Begin(u64),
    Call(u64),
    /// A call of somebody who looks at its return address, which must be the original's: of a function, or through
    /// the word that the operand names.
    CallWithOriginalReturn(Option<u64>),
    /// An indirect call, a system call, a trap, ud2, hlt: may not come back.
    Leave,
    JumpIndirect,
    Return,
}

impl Way {
    pub(super) fn target(self) -> Option<u64> {
        match self {
            Way::Jump(to) | Way::Conditional(to) | Way::Loop(to) | Way::Begin(to) => Some(to),
            _ => None,
        }
    }

    /// Whether control may go on behind the instruction.
    pub(super) fn falls_through(self) -> bool {
        !matches!(self, Way::Jump(_) | Way::JumpIndirect | Way::Return)
    }

    /// Leaves a return address, or is come back from as if it did.
    pub(super) fn may_return(self) -> bool {
        matches!(self, Way::Call(_) | Way::CallWithOriginalReturn(_) | Way::Leave)
    }

    pub(super) fn ends_block(self) -> bool {
        !matches!(self, Way::Next | Way::Nop)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(super) ip: u64,
    pub(super) len: u8,
    /// Where the displacement of a RIP-relative operand stands in the instruction; 0: there is none.
    pub(super) operand: u8,
    pub(super) way: Way,
    /// Of [`FLAGS`].
    pub(super) reads: u8,
    pub(super) writes: u8,
}

impl Step {
    pub(super) fn end(&self) -> u64 {
        self.ip + u64::from(self.len)
    }
}

/// All instructions of a unit, sorted by address within each part.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    pub(super) parts: Vec<Part>,
    pub(super) list: Vec<Step>,
    /// Addresses that the code computes, of its own labels, of jump tables, or of anything else.
    pub(super) addresses: Vec<u64>,
    pub(super) jumps_indirectly: bool,
    /// It jumps to an address that it has computed, not only loaded.
    pub(super) jumps_by_sum: bool,
    /// A bit for each general register: what was written to it last is the result of a computation.
    computed: u16,
}

impl Steps {
    /// Decodes the stretches; the first is the function itself.
    pub(super) fn decode(image: &Image, flow: &Flow, stretches: &[(u64, u64)]) -> Result<Steps, Uncounted> {
        let mut steps = Steps::default();
        for &(lo, hi) in stretches {
            let first = steps.list.len();
            let bytes = image.code_at(lo, hi - lo).ok_or(Uncounted::NotDecodable)?;
            let mut decoder = Decoder::with_ip(64, bytes, lo, DecoderOptions::NONE);
            let mut instruction = Instruction::default();
            while decoder.can_decode() {
                decoder.decode_out(&mut instruction);
                if instruction.is_invalid() {
                    return Err(Uncounted::NotDecodable);
                }
                let at = (instruction.ip() - lo) as usize;
                let bytes = &bytes[at..at + instruction.len()];
                steps.step(image, flow, &instruction, bytes, &decoder, stretches)?;
            }
            steps.parts.push(Part { lo, hi, first, end: steps.list.len() });
        }
        Ok(steps)
    }

    fn step(
        &mut self,
        image: &Image,
        flow: &Flow,
        i: &Instruction,
        bytes: &[u8],
        decoder: &Decoder,
        stretches: &[(u64, u64)],
    ) -> Result<(), Uncounted> {
        if i.segment_prefix() == Register::GS
            || matches!(i.mnemonic(), Mnemonic::Wrgsbase | Mnemonic::Rdgsbase)
        {
            return Err(Uncounted::UsesGs);
        }
        let mut way = way(i)?;
        let own = |address: u64| stretches.iter().any(|&(lo, hi)| (lo..hi).contains(&address));
        if matches!(way, Way::Call(to) if own(to) && to != stretches[0].0) {
            return Err(Uncounted::NotRelocatable);
        }
        if way.ends_block() && i.flow_control() != FlowControl::Interrupt && is_ambiguous(bytes) {
            return Err(Uncounted::NotRelocatable);
        }
        match way {
            Way::Call(to) if comes_back_elsewhere(image, to) => return Err(Uncounted::NotRelocatable),
            Way::Call(to) if looks_at_return_address(image, flow, to) => {
                way = Way::CallWithOriginalReturn(Some(to))
            }
            Way::Leave if i.code() == Code::Call_rm64 && i.is_ip_rel_memory_operand() => {
                let word = i.ip_rel_memory_address();
                if image.facts.profiling.lookups.binary_search(&word).is_ok() {
                    way = Way::CallWithOriginalReturn(None);
                }
            }
            _ => {}
        }
        let mut operand = 0;
        if i.is_ip_rel_memory_operand() {
            if i.memory_base() != Register::RIP {
                return Err(Uncounted::NotRelocatable);
            }
            operand = decoder.get_constant_offsets(i).displacement_offset() as u8;
            let address = i.ip_rel_memory_address();
            match i.code() {
                Code::Lea_r64_m => self.addresses.push(address),
                // Nops may be as long as they like.
                _ if own(address) && way != Way::Nop => return Err(Uncounted::DataInCode),
                _ => {}
            }
        }
        if image.kind == ImageKind::Exec && operand == 0 {
            self.addresses.extend(absolute(i).filter(|address| (image.lo..image.hi).contains(address)));
        }
        if way == Way::JumpIndirect {
            self.jumps_indirectly = true;
            let register = i.op0_register();
            self.jumps_by_sum |= register.is_gpr() && self.computed & 1 << register.number() != 0;
        }
        if way == Way::Next && i.op0_kind() == OpKind::Register && i.op0_register().is_gpr() {
            let bit = 1 << i.op0_register().full_register().number();
            match i.mnemonic() {
                Mnemonic::Mov if i.op1_kind() == OpKind::Register && i.op1_register().is_gpr() => {
                    let from = i.op1_register().full_register().number();
                    self.computed =
                        self.computed & !bit | if self.computed & 1 << from != 0 { bit } else { 0 };
                }
                Mnemonic::Mov | Mnemonic::Pop => self.computed &= !bit,
                // A function's address, and a choice between two.
                Mnemonic::Lea if i.is_ip_rel_memory_operand() => self.computed &= !bit,
                _ if i.condition_code() != ConditionCode::None => {}
                Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push => {}
                _ => self.computed |= bit,
            }
        }
        let (reads, writes) = flags(i);
        self.list.push(Step { ip: i.ip(), len: i.len() as u8, operand, way, reads, writes });
        Ok(())
    }

    /// The index of the instruction that begins at an address.
    pub(super) fn at(&self, address: u64) -> Option<usize> {
        let part = self.parts.iter().find(|p| (p.lo..p.hi).contains(&address))?;
        let list = &self.list[part.first..part.end];
        list.binary_search_by_key(&address, |s| s.ip).ok().map(|n| part.first + n)
    }

    pub(super) fn holds(&self, address: u64) -> bool {
        self.parts.iter().any(|p| (p.lo..p.hi).contains(&address))
    }
}

fn way(i: &Instruction) -> Result<Way, Uncounted> {
    let near = || match i.op0_kind() {
        OpKind::NearBranch64 => Ok(i.near_branch_target()),
        _ => Err(Uncounted::NotRelocatable),
    };
    Ok(match i.flow_control() {
        _ if is_nop(i) => Way::Nop,
        // The program's own handler of the fault may go on behind it.
        FlowControl::Next if i.mnemonic() == Mnemonic::Hlt => Way::Leave,
        FlowControl::Next => Way::Next,
        _ if is_call(i) && has_branch(i) => Way::Call(near()?),
        FlowControl::Call if i.op_count() > 0 => return Err(Uncounted::NotRelocatable),
        FlowControl::IndirectCall if i.code() != Code::Call_rm64 => return Err(Uncounted::NotRelocatable),
        FlowControl::Call | FlowControl::IndirectCall | FlowControl::Interrupt => Way::Leave,
        FlowControl::UnconditionalBranch => Way::Jump(near()?),
        FlowControl::ConditionalBranch if i.is_jcc_short_or_near() => Way::Conditional(near()?),
        FlowControl::ConditionalBranch => Way::Loop(near()?),
        FlowControl::XbeginXabortXend if i.code() == Code::Xbegin_rel32 => Way::Begin(near()?),
        FlowControl::XbeginXabortXend if i.mnemonic() == Mnemonic::Xbegin => {
            return Err(Uncounted::NotRelocatable);
        }
        FlowControl::XbeginXabortXend => Way::Leave,
        FlowControl::IndirectBranch if i.code() == Code::Jmp_rm64 => Way::JumpIndirect,
        FlowControl::Return if matches!(i.code(), Code::Retnq | Code::Retnq_imm16) => Way::Return,
        FlowControl::Exception => Way::Leave,
        FlowControl::IndirectBranch | FlowControl::Return => return Err(Uncounted::NotRelocatable),
    })
}

/// Numbers in an instruction of a program for a fixed place that may be addresses.
fn absolute(i: &Instruction) -> impl Iterator<Item = u64> + '_ {
    (0..i.op_count()).filter_map(|n| match i.op_kind(n) {
        OpKind::Memory => Some(i.memory_displacement64()),
        OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64 => Some(i.immediate(n)),
        _ => None,
    })
}

/// Whether what is called there goes on behind its return address (gcc's -fsplit-stack, libgcc's morestack.S).
fn comes_back_elsewhere(image: &Image, target: u64) -> bool {
    let function = image.function_at(target).map(|f| &image.functions[f]);
    function.is_some_and(|f| f.name.starts_with("__morestack"))
}

/// Whether what is called there wants to know who calls: a function of the program, or a stub of a library's.
fn looks_at_return_address(image: &Image, flow: &Flow, target: u64) -> bool {
    if let Some(function) = image.function_at(target) {
        return flow.functions.get(function).is_some_and(|f| f.odd_return);
    }
    let lookups = &image.facts.profiling.lookups;
    if lookups.is_empty() {
        return false;
    }
    // [endbr64;] jmp [rip+word]
    let bytes = image.code_at(target, 16).unwrap_or_default();
    let mut stub = Decoder::with_ip(64, bytes, target, DecoderOptions::NONE).into_iter().take(2);
    stub.any(|i| {
        i.code() == Code::Jmp_rm64
            && i.is_ip_rel_memory_operand()
            && lookups.binary_search(&i.ip_rel_memory_address()).is_ok()
    })
}

/// Which of [`FLAGS`] the instruction reads, and which it certainly overwrites.
fn flags(i: &Instruction) -> (u8, u8) {
    let reads = i.rflags_read() & FLAGS;
    // A count of zero leaves the flags alone.
    let by_count = matches!(
        i.mnemonic(),
        Mnemonic::Shl
            | Mnemonic::Shr
            | Mnemonic::Sar
            | Mnemonic::Sal
            | Mnemonic::Rol
            | Mnemonic::Ror
            | Mnemonic::Rcl
            | Mnemonic::Rcr
            | Mnemonic::Shld
            | Mnemonic::Shrd
    ) && (0..i.op_count())
        .any(|n| i.op_kind(n) == OpKind::Register && i.op_register(n) == Register::CL);
    let repeated = i.has_rep_prefix() || i.has_repne_prefix();
    let writes = if by_count || repeated { 0 } else { i.rflags_modified() & FLAGS };
    // The bits of these flags' masks fit into a byte.
    (reads as u8, writes as u8)
}

const _: () = assert!(FLAGS < 256);
