//! The instructions of a unit, that is, a function and its cold parts. Either all of them are known, or the
//! function is not counted.
//!
//! Decoding is linear, as compilers emit code. Data between instructions, or branches into the middle of one,
//! are reasons not to count the function.

use crate::blocks::uncounted::Uncounted;
use crate::flow::facts::Flow;
use crate::x86::relocate::instructions::is_ambiguous;
use gprofinject_image::x86::{has_branch, is_call, is_nop};
use gprofinject_image::{ElfType, Image};
use iced_x86::{
    Code, ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
    RflagsBits,
};

/// The flags that `inc` changes.
pub(crate) const COUNTER_FLAGS: u8 =
    (RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::PF) as u8;
/// The flags that `add` and a comparison change.
pub(crate) const FLAGS: u32 = COUNTER_FLAGS as u32 | RflagsBits::CF;

/// The byte of a lock prefix.
const LOCK: u8 = 0xf0;

/// A part of a unit: the function, or one of its cold parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Address of its first byte.
    pub(super) lo: u64,
    /// Address of the first byte after it.
    pub(super) hi: u64,
    /// Index of its first step.
    pub(super) first: usize,
    /// Index of the first step after it.
    pub(super) end: usize,
}

/// Where control continues after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// To the next instruction.
    Next,
    /// To the next instruction, and this one does nothing.
    Nop,
    /// To this address.
    Jump(u64),
    /// To this address or the next instruction.
    Conditional(u64),
    /// To this address or the next instruction, by `loop`, `jrcxz` or the like, which have only a short
    /// displacement.
    Loop(u64),
    /// To the next instruction, and later perhaps to this address: `xbegin`.
    Begin(u64),
    /// To the function at this address, and back.
    Call(u64),
    /// To a function that uses its return address, which must be that of the original: the function at
    /// this address, or the one whose address is in the word that the operand names.
    CallWithOriginalReturn(Option<u64>),
    /// An indirect call, a system call, a trap, `ud2` or `hlt`, which may not return.
    Leave,
    /// To an unknown address.
    JumpIndirect,
    /// Back to the caller.
    Return,
}

impl Way {
    /// Returns the address that a branch leads to, except that of a call.
    pub(super) fn target(self) -> Option<u64> {
        match self {
            Way::Jump(to) | Way::Conditional(to) | Way::Loop(to) | Way::Begin(to) => Some(to),
            _ => None,
        }
    }

    /// Returns whether control may continue with the next instruction.
    pub(super) fn falls_through(self) -> bool {
        !matches!(self, Way::Jump(_) | Way::JumpIndirect | Way::Return)
    }

    /// Returns whether control may come back from elsewhere to the next instruction.
    pub(super) fn may_return(self) -> bool {
        matches!(self, Way::Call(_) | Way::CallWithOriginalReturn(_) | Way::Leave)
    }

    /// Returns whether the instruction ends a basic block.
    pub(super) fn ends_block(self) -> bool {
        !matches!(self, Way::Next | Way::Nop)
    }
}

/// An instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Its address.
    pub(super) ip: u64,
    /// Its bytes.
    pub(super) len: u8,
    /// Offset in the instruction of the displacement of a RIP-relative operand, or 0 if there is none.
    pub(super) operand: u8,
    /// Where control continues.
    pub(super) way: Way,
    /// The flags that it reads, as bits of [`FLAGS`].
    pub(super) reads: u8,
    /// The flags that it certainly overwrites.
    pub(super) writes: u8,
    /// Whether it is only the lock prefix of the instruction that is the next step, because some code jumps behind it. Nothing may come
    /// between the two.
    pub(super) is_lock: bool,
}

impl Step {
    /// Returns a lock prefix.
    fn of_lock(ip: u64) -> Step {
        Step { ip, len: 1, operand: 0, way: Way::Next, reads: 0, writes: 0, is_lock: true }
    }

    /// Returns the address of the first byte after the instruction.
    pub(super) fn end(&self) -> u64 {
        self.ip + u64::from(self.len)
    }
}

/// All instructions of a unit, sorted by address within each part.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// The parts. The first is the function itself.
    pub(super) parts: Vec<Part>,
    /// The instructions.
    pub(super) list: Vec<Step>,
    /// Addresses that the code computes: of its own labels, of jump tables, or of anything else.
    pub(super) addresses: Vec<u64>,
    /// Whether an instruction jumps indirectly.
    pub(super) jumps_indirectly: bool,
    /// Whether an instruction jumps to an address that the code has computed, rather than only loaded.
    pub(super) jumps_by_sum: bool,
    /// A bit for each general register whose last value is the result of a computation.
    computed: u16,
}

impl Steps {
    /// Decodes the stretches of code, of which the first is the function itself.
    /// # Errors
    /// The function cannot be counted; the error is the reason.
    pub(super) fn decode(image: &Image, flow: &Flow, stretches: &[(u64, u64)]) -> Result<Steps, Uncounted> {
        let mut steps = Steps::default();
        for &(lo, hi) in stretches {
            let first = steps.list.len();
            let bytes = image.code_at(lo, hi - lo).ok_or(Uncounted::NotDecodable)?;
            let mut decoder = Decoder::with_ip(64, bytes, lo, DecoderOptions::NONE);
            let mut instruction = Instruction::default();
            while decoder.can_decode() {
                let ip = decoder.ip();
                if steps.skips_lock(ip, bytes.get((ip - lo) as usize..).unwrap_or_default()) {
                    steps.list.push(Step::of_lock(ip));
                    decoder.set_ip(ip + 1);
                    let _ = decoder.set_position((ip + 1 - lo) as usize);
                }
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

    /// Whether the code at an address begins with a lock prefix over which the instruction before may jump, as in the C library,
    /// where a process with one thread needs no lock (sysdeps/x86/atomic-machine.h). `rest` is the code from there on.
    fn skips_lock(&self, ip: u64, rest: &[u8]) -> bool {
        let jumps =
            self.list.last().is_some_and(|last| last.end() == ip && last.way.target() == Some(ip + 1));
        jumps && rest.first() == Some(&LOCK)
    }

    /// Adds an instruction, whose bytes are `bytes`.
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
            Way::Call(to) if comes_back_elsewhere(image, flow, to) => return Err(Uncounted::NotRelocatable),
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
                // A nop does not use its operand.
                _ if own(address) && way != Way::Nop => return Err(Uncounted::DataInCode),
                _ => {}
            }
        }
        if image.elf_type == ElfType::Exec && operand == 0 {
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
                // The result is a function's address, or one of two such addresses.
                Mnemonic::Lea if i.is_ip_rel_memory_operand() => self.computed &= !bit,
                _ if i.condition_code() != ConditionCode::None => {}
                Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push => {}
                _ => self.computed |= bit,
            }
        }
        let (reads, writes) = flags(i);
        self.list.push(Step { ip: i.ip(), len: i.len() as u8, operand, way, reads, writes, is_lock: false });
        Ok(())
    }

    /// Returns the index of the instruction that begins at an address.
    pub(super) fn at(&self, address: u64) -> Option<usize> {
        let part = self.parts.iter().find(|p| (p.lo..p.hi).contains(&address))?;
        let list = &self.list[part.first..part.end];
        list.binary_search_by_key(&address, |s| s.ip).ok().map(|n| part.first + n)
    }

    /// Returns whether the unit has the system call with which the C library forks.
    pub(super) fn forks(&self, image: &Image) -> bool {
        /// `mov eax, 56; syscall` (clone). The agent looks for the same bytes: see its `process/birth.rs`.
        const CLONE: [u8; 7] = [0xb8, 56, 0, 0, 0, 0x0f, 0x05];
        self.list.iter().any(|step| image.code_at(step.ip, CLONE.len() as u64) == Some(&CLONE))
    }

    /// Returns whether an address lies in the unit.
    pub(super) fn holds(&self, address: u64) -> bool {
        self.parts.iter().any(|p| (p.lo..p.hi).contains(&address))
    }
}

/// Returns where control continues after an instruction.
fn way(i: &Instruction) -> Result<Way, Uncounted> {
    let near = || match i.op0_kind() {
        OpKind::NearBranch64 => Ok(i.near_branch_target()),
        _ => Err(Uncounted::NotRelocatable),
    };
    Ok(match i.flow_control() {
        _ if is_nop(i) => Way::Nop,
        // The program's own handler of the fault may continue after the instruction.
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

/// Returns the numbers in an instruction of a program with a fixed load address that may be addresses.
fn absolute(i: &Instruction) -> impl Iterator<Item = u64> + '_ {
    (0..i.op_count()).filter_map(|n| match i.op_kind(n) {
        OpKind::Memory => Some(i.memory_displacement64()),
        OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64 => Some(i.immediate(n)),
        _ => None,
    })
}

/// Returns whether the called function returns to another place than behind its call: it changes its return address, or is one
/// of gcc's for -fsplit-stack (libgcc's morestack.S).
fn comes_back_elsewhere(image: &Image, flow: &Flow, target: u64) -> bool {
    let Some(function) = image.function_at(target) else { return false };
    let shifts = flow.functions.get(function).is_some_and(|facts| facts.shifts_return);
    shifts || image.functions[function].name.starts_with("__morestack")
}

/// Returns whether the called function uses its return address. It may be a function of the program, or
/// the stub of a library function.
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

/// Returns which of [`FLAGS`] the instruction reads, and which it certainly overwrites.
fn flags(i: &Instruction) -> (u8, u8) {
    let reads = i.rflags_read() & FLAGS;
    // If the count is zero, the flags do not change.
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
    // The bits of these flags fit into a byte.
    (reads as u8, writes as u8)
}

const _: () = assert!(FLAGS < 256);
