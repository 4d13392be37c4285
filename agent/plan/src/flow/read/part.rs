//! Decodes consecutive functions, each once, in the order of their addresses, and records the facts of
//! each instruction.

use crate::flow::branch::{Branch, BranchKind, NEAR};
use crate::flow::facts::FunctionFlow;
use crate::flow::read::loops::{self, Found};
use crate::flow::read::seen::Seen;
use crate::flow::read::switches;
use crate::flow::registers::argument::takes_rax;
use crate::flow::return_slot::examine::examine;
use crate::x86::predecode::decode::{Predecoded, predecode};
use crate::x86::predecode::fields::{Class, WINDOW};
use crate::x86::predecode::skim::Skimmed;
use gprofinject_image::x86::{falls_through, is_call};
use gprofinject_image::{ElfType, FunctionKind, Image, JumpTable, sort};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind,
    Register,
};
use std::ops::Range;

/// Whether control stays in `lo..hi` or returns.
fn stays(instruction: &Instruction, control: FlowControl, lo: u64, hi: u64) -> bool {
    match control {
        FlowControl::Next | FlowControl::Return | FlowControl::Exception => true,
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
            instruction.op0_kind() == OpKind::NearBranch64
                && (lo..hi).contains(&instruction.near_branch_target())
        }
        _ => false,
    }
}

/// Returns whether the instruction is a direct jump out of `lo..hi`, or a direct call of a function: of one outside of it,
/// or of the one that begins at `lo`.
fn leaves_directly(instruction: &Instruction, control: FlowControl, lo: u64, hi: u64) -> bool {
    if instruction.op0_kind() != OpKind::NearBranch64 {
        return false;
    }
    let target = instruction.near_branch_target();
    match control {
        FlowControl::Call => target == lo || !(lo..hi).contains(&target),
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => true,
        _ => false,
    }
}

/// Returns whether the bytes begin with an instruction.
fn begins_instruction(bytes: &[u8]) -> bool {
    !Decoder::new(64, bytes, DecoderOptions::NONE).decode().is_invalid()
}

/// Returns an instruction as a direct branch, or `None` if it is not one.
fn branch(function: u32, instruction: &Instruction, passes_r10: bool) -> Option<Branch> {
    if !matches!(instruction.op0_kind(), OpKind::NearBranch64) {
        return None;
    }
    let kind = match instruction.flow_control() {
        FlowControl::Call => BranchKind::Call,
        FlowControl::UnconditionalBranch => BranchKind::Jump,
        _ => BranchKind::Conditional,
    };
    let width = match instruction.code() {
        Code::Jmp_rel32_64 | Code::Call_rel32_64 | Code::Xbegin_rel32 => 4,
        code if code.is_jcc_near() => 4,
        code if code.is_jmp_short() || code.is_jcc_short() || code.is_loop() || code.is_jcx_short() => 1,
        code if code.is_loopcc() => 1,
        _ => return None,
    };
    let (target, site, len) = (instruction.near_branch_target(), instruction.ip(), instruction.len() as u8);
    Some(Branch { target, site, function, len, width, kind, passes_r10 })
}

/// Options of [`Part::decode`].
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// Whether most instructions are decoded only as far as [`predecode`] does. Tests turn this off, so
    /// that iced decodes every instruction.
    pub(crate) predecodes: bool,
    /// See [`Flow::of`](crate::flow::facts::Flow::of).
    pub(crate) exits: bool,
}

/// Returns whether an instruction reads or sets the base of gs, or accesses memory by it.
fn uses_gs(i: &Instruction) -> bool {
    match i.mnemonic() {
        Mnemonic::Wrgsbase | Mnemonic::Rdgsbase | Mnemonic::Lgs => true,
        Mnemonic::Mov | Mnemonic::Pop if i.op0_register() == Register::GS => true,
        // These only name an address.
        Mnemonic::Lea | Mnemonic::Nop => false,
        _ => i.segment_prefix() == Register::GS && i.memory_segment() == Register::GS,
    }
}

/// The facts about consecutive functions.
#[derive(Default)]
pub(crate) struct Part {
    /// The direct branches, sorted by target.
    pub(crate) branches: Vec<Branch>,
    /// The facts about each function.
    pub(crate) functions: Vec<FunctionFlow>,
    /// Addresses in code that instructions compute or read.
    pub(crate) taken: Vec<u64>,
    /// Targets of indirect branches that lie near the start of a function.
    pub(crate) indirect: Vec<u64>,
    /// The bytes of functions that could not be decoded: from the first byte that begins no instruction to
    /// the function's end, or to that of the next one if an instruction reaches beyond the function's end.
    pub(crate) unread: Vec<Range<u64>>,
    /// See [`Flow::uses_gs`](crate::flow::facts::Flow::uses_gs).
    pub(crate) uses_gs: Option<u64>,
    /// See [`Flow::results`](crate::flow::facts::Flow::results).
    pub(crate) results: Vec<(u64, u8)>,
}

impl Part {
    /// Decodes the functions of the image with indices in `range`.
    pub(crate) fn decode(image: &Image, range: Range<usize>, wanted: Wanted) -> Part {
        let mut part = Part::default();
        part.branches.reserve(range.len() * 8);
        let mut factory = InstructionInfoFactory::new();
        for i in range {
            let flow = part.function(image, i, wanted, &mut factory);
            part.functions.push(flow);
        }
        // The branches are already in the order of their sites, and a stable sort keeps that order.
        sort::by_key(&mut part.branches, |b| b.target);
        part
    }

    /// Decodes function `index`.
    fn function(
        &mut self,
        image: &Image,
        index: usize,
        wanted: Wanted,
        factory: &mut InstructionInfoFactory,
    ) -> FunctionFlow {
        let f = &image.functions[index];
        let taken_before = self.taken.len();
        let mut seen = Seen::new(image, index);
        seen.note_interest();
        let Some(bytes) = image.code_at(f.address, f.size) else {
            return FunctionFlow { undecodable: true, ..Default::default() };
        };
        // Of segments that overlap, the first that contains the function's start may end inside the function.
        let behind = image.code_from(f.address).filter(|behind| behind.len() >= bytes.len()).unwrap_or(bytes);
        // Immediate operands in this range may be addresses: see `note_reference`.
        let addresses = if image.elf_type == ElfType::Dyn { 0..0 } else { image.lo..image.hi };
        let mut decoder = Decoder::with_ip(64, bytes, f.address, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        let mut at = 0;
        while at < bytes.len() {
            if !seen.is_careful && wanted.predecodes {
                let skimmed;
                (at, skimmed) = seen.pass_over(bytes, behind, at, &addresses);
                if let Some(len) = self.note_skimmed(image, &mut seen, skimmed, at) {
                    at += len;
                    continue;
                }
                if at == bytes.len() {
                    break;
                }
            }
            let ip = f.address + at as u64;
            // An instruction that would extend beyond the function's end does not belong to it.
            let window = behind[at..].first_chunk::<WINDOW>().filter(|_| wanted.predecodes);
            let quick = window.and_then(predecode);
            if let Some(i) = quick.filter(|i| at + usize::from(i.len) <= bytes.len())
                && self.pass(image, &mut seen, &i, ip)
            {
                at += usize::from(i.len);
                seen.last = i.class;
                continue;
            }
            decoder.set_ip(ip);
            // This cannot fail: the position is within the bytes.
            _ = decoder.set_position(at);
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                seen.flow.undecodable = true;
                seen.last = Class::Return;
                seen.flow.straddles = begins_instruction(&behind[at..]);
                // If the function's end is wrong, the bytes after it are to be read from this instruction on.
                let next = image.functions.get(index + 1).filter(|next| next.address == f.address + f.size);
                let end = if seen.flow.straddles {
                    next.map_or(f.limit, |next| next.address + next.size)
                } else {
                    seen.hi
                };
                self.unread.push(ip..end);
                break;
            }
            at += instruction.len();
            self.look(image, &mut seen, &instruction, factory);
        }
        let Seen { mut flow, mut scan, watch, lo, hi, tables, indirect_jump, own_start, last, .. } = seen;
        // Control that runs on beyond the function's end continues in another function.
        let falls_through = !matches!(last, Class::Jump | Class::Return);
        flow.leaf &= !flow.undecodable && !falls_through;
        flow.leaves_directly &= !flow.undecodable && !falls_through;
        flow.runs_on = falls_through && last != Class::Call;
        flow.ends_in_call = last == Class::Call;
        let reads_rax = scan.reads_rax;
        self.results.append(&mut scan.results);
        flow.registers = scan.finish();
        // Control jumps into a cold part with values in any register. A runtime's own compiler may pass the first argument
        // in rax (OCaml's does).
        let is_called = !matches!(f.kind, FunctionKind::Cold(_)) && image.facts.runtime.is_none();
        flow.registers.takes_rax = reads_rax && is_called && takes_rax(image, f, factory);
        if indirect_jump {
            flow.leaves_directly &= wanted.exits && switches::stay(image, f, &tables, factory);
            for &table in &tables {
                self.note_table(image, JumpTable::Distances(table), lo, hi);
                self.note_table(image, JumpTable::Addresses(table), lo, hi);
            }
            let found = Found { tables: &tables, taken: &self.taken[taken_before..], own_start };
            let loops = loops::of(image, f, &found, factory);
            (flow.table_loops, flow.calls_itself_too) = (loops.by_label, loops.by_label && loops.by_call);
        }
        // The exit of a function that loops is hooked in any case.
        let may_have_exit = wanted.exits || flow.leaf || flow.table_loops;
        // No code calls the entry point: the words on its stack are the program's arguments.
        if watch.is_suspicious() && may_have_exit && f.address != image.entry {
            let uses = examine(image, f, factory);
            flow.odd_return |= uses.own;
            flow.shifts_return = uses.shifts;
            flow.reads_callers = uses.callers;
        }
        flow
    }

    /// Records the facts of a skimmed instruction at a position in the function, and returns the
    /// instruction's length, or `None` if the instruction has to be decoded further.
    #[inline(always)]
    fn note_skimmed(&mut self, image: &Image, seen: &mut Seen, skimmed: Skimmed, at: usize) -> Option<usize> {
        let ip = seen.lo + at as u64;
        match skimmed {
            Skimmed::Branch { class, len, width, displacement } => {
                let next = ip + u64::from(len);
                if next > seen.hi {
                    return None;
                }
                let target = next.wrapping_add_signed(displacement.into());
                seen.watch.pass_branch(class, ip, next, target);
                seen.flow.head.pass(class, ip, len, false, seen.hook);
                self.pass_branch(seen, class, ip, len, width, target);
                seen.last = class;
                Some(len.into())
            }
            Skimmed::Relative { len, displacement, is_lea } => {
                let next = ip + u64::from(len);
                if next > seen.hi || ip >= seen.scan.stop() {
                    return None;
                }
                let target = next.wrapping_add_signed(displacement.into());
                let own = self.note_relative(image, target, is_lea, &mut seen.tables);
                seen.own_start |= own == Some(seen.lo);
                seen.flow.head.pass(Class::Next, ip, len, true, seen.hook);
                seen.last = Class::Next;
                Some(len.into())
            }
            Skimmed::Stack { class, len, register } => {
                if ip + u64::from(len) > seen.hi || seen.interest.others >> register & 1 != 0 {
                    return None;
                }
                if class == Class::Push {
                    seen.watch.push(Some(register));
                } else {
                    seen.watch.pop(Some(register));
                }
                seen.flow.head.pass(class, ip, len, false, seen.hook);
                seen.note_interest();
                seen.last = class;
                Some(len.into())
            }
            Skimmed::Plain(_) | Skimmed::Other => None,
        }
    }

    /// Records the facts of a predecoded instruction. Returns `false` if iced has to decode it.
    #[inline(always)]
    fn pass(&mut self, image: &Image, seen: &mut Seen, i: &Predecoded, ip: u64) -> bool {
        if !seen.scan.passes(i) || !seen.watch.passes(i) {
            return false;
        }
        let target = i.target(ip);
        seen.watch.pass(i, ip, target);
        seen.flow.head.pass(i.class, ip, i.len, i.is_relative(), seen.hook);
        if matches!(i.class, Class::Call | Class::Jump | Class::Conditional | Class::Return) {
            self.pass_branch(seen, i.class, ip, i.len, i.width(), target);
            return true;
        }
        seen.scan.pass(i, ip);
        let own = if i.is_relative() {
            self.note_relative(image, target, i.class == Class::Lea, &mut seen.tables)
        } else {
            // See `note_reference`.
            let immediate = i.immediate(!seen.has_addresses);
            immediate.and_then(|address| self.note_address(image, address, &mut seen.tables))
        };
        seen.own_start |= own == Some(seen.lo);
        seen.note_interest();
        true
    }

    /// Processes a direct branch for everything except the
    /// [`Watch`](crate::flow::return_slot::watch::Watch).
    #[inline(always)]
    fn pass_branch(&mut self, seen: &mut Seen, class: Class, ip: u64, len: u8, width: u8, target: u64) {
        let is_decided = seen.scan.is_decided();
        let (kind, flow) = match class {
            Class::Return => {
                seen.scan.leave(ip);
                seen.note_interest();
                return;
            }
            Class::Call => (BranchKind::Call, FlowControl::Call),
            Class::Jump => (BranchKind::Jump, FlowControl::UnconditionalBranch),
            _ => (BranchKind::Conditional, FlowControl::ConditionalBranch),
        };
        seen.scan.branch(ip, flow, target);
        let is_inside = (seen.lo..seen.hi).contains(&target);
        if kind == BranchKind::Call {
            seen.flow.leaf = false;
            seen.flow.leaves_directly &= !is_inside || target == seen.lo;
        } else {
            seen.flow.leaf &= is_inside;
        }
        if !is_inside || target - seen.lo < NEAR {
            let (function, passes_r10) = (seen.index, seen.scan.passes_r10);
            let branch = Branch { target, site: ip, function, len, width, kind, passes_r10 };
            self.note_branch(seen, branch);
        }
        // A conditional jump changes no register.
        if class != Class::Conditional || !is_decided {
            seen.note_interest();
        }
    }

    /// Records the facts of an instruction that iced has decoded.
    fn look(
        &mut self,
        image: &Image,
        seen: &mut Seen,
        instruction: &Instruction,
        factory: &mut InstructionInfoFactory,
    ) {
        let control = instruction.flow_control();
        if self.uses_gs.is_none() && uses_gs(instruction) {
            self.uses_gs = Some(instruction.ip());
        }
        seen.scan.look(instruction, control, factory);
        seen.flow.head.look(instruction, seen.hook);
        if !stays(instruction, control, seen.lo, seen.hi) {
            seen.flow.leaf = false;
            // Indirect jumps are examined at the end of the function.
            seen.flow.leaves_directly &= control == FlowControl::IndirectBranch
                || leaves_directly(instruction, control, seen.lo, seen.hi);
        }
        seen.watch.look(instruction, control);
        seen.flow.odd_return |= instruction.code() == Code::Retnq_imm16;
        seen.note_interest();
        seen.last = match control {
            _ if is_call(instruction) => Class::Call,
            _ if !falls_through(instruction) => Class::Return,
            _ => Class::Next,
        };
        match control {
            FlowControl::Next => {
                let own = self.note_reference(image, instruction, &mut seen.tables);
                seen.own_start |= own == Some(seen.lo);
            }
            FlowControl::Call
            | FlowControl::UnconditionalBranch
            | FlowControl::ConditionalBranch
            | FlowControl::XbeginXabortXend => {
                if let Some(branch) = branch(seen.index, instruction, seen.scan.passes_r10) {
                    self.note_branch(seen, branch);
                }
            }
            FlowControl::IndirectBranch => {
                seen.indirect_jump = true;
                if instruction.memory_base() == Register::None && !instruction.is_ip_rel_memory_operand() {
                    seen.tables.push(instruction.memory_displacement64());
                }
            }
            _ => {}
        }
    }

    /// Records a direct branch, unless it stays inside the function and does not lead near its start.
    fn note_branch(&mut self, seen: &mut Seen, branch: Branch) {
        seen.flow.recursive |= branch.kind == BranchKind::Call && branch.target == seen.lo;
        if !(seen.lo..seen.hi).contains(&branch.target) || branch.target - seen.lo < NEAR {
            self.branches.push(branch);
        }
    }

    /// Records a RIP-relative operand: that of `lea`, or of an instruction that reads or writes there.
    /// Returns the address if the instruction computes it.
    fn note_relative(
        &mut self,
        image: &Image,
        address: u64,
        lea: bool,
        tables: &mut Vec<u64>,
    ) -> Option<u64> {
        if !lea {
            // The address is that of data among the code.
            self.taken.extend(Some(address).filter(|&a| image.is_code(a)));
            return None;
        }
        self.note_address(image, address, tables)
    }

    /// Records an address that an instruction computes: of code, or of data that may be a jump table.
    /// Returns the address if it lies in the program.
    fn note_address(&mut self, image: &Image, address: u64, tables: &mut Vec<u64>) -> Option<u64> {
        if address < image.lo || address >= image.hi {
            return None;
        }
        if image.is_code(address) {
            self.taken.push(address);
        }
        if image.may_be_data(address) {
            tables.push(address);
        }
        Some(address)
    }

    /// Records the address of code or of a table that an instruction computes, and returns the address.
    fn note_reference(
        &mut self,
        image: &Image,
        instruction: &Instruction,
        tables: &mut Vec<u64>,
    ) -> Option<u64> {
        if instruction.is_ip_rel_memory_operand() {
            let is_lea = instruction.code() == Code::Lea_r64_m;
            return self.note_relative(image, instruction.ip_rel_memory_address(), is_lea, tables);
        }
        if instruction.op_count() != 2 {
            return None;
        }
        // Code that is not position-independent contains addresses as 32-bit immediate operands. In a PIE,
        // such operands are numbers.
        let address = match instruction.op1_kind() {
            OpKind::Immediate32 | OpKind::Immediate32to64 if image.elf_type == ElfType::Dyn => return None,
            OpKind::Immediate32 => u64::from(instruction.immediate32()),
            OpKind::Immediate32to64 => instruction.immediate32to64() as u64,
            OpKind::Immediate64 => instruction.immediate64(),
            _ => return None,
        };
        self.note_address(image, address, tables)
    }

    /// Records to which of the function's first bytes a table of jump targets leads. The table is read for as long as its entries lead
    /// into the function or a cold part.
    fn note_table(&mut self, image: &Image, table: JumpTable, lo: u64, hi: u64) {
        let is_cold = |i: usize| matches!(image.functions[i].kind, FunctionKind::Cold(_));
        for target in table.targets(image) {
            if !(lo..hi).contains(&target) {
                if image.function_at(target).is_some_and(is_cold) {
                    continue;
                }
                break;
            }
            if target != lo && target - lo < NEAR {
                self.indirect.push(target);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests this very program and large ones that this machine may have, position-independent and not.
    #[test]
    fn predecoding_finds_what_decoding_finds() {
        let own = std::env::current_exe().expect("the test's own path");
        let others = ["/usr/bin/python3", "/usr/bin/perl", "/usr/bin/bash", "/usr/bin/gdb", "/usr/bin/git"];
        for path in others.iter().map(std::path::PathBuf::from).chain([own]) {
            let Ok(bytes) = std::fs::read(&path) else { continue };
            let Ok(image) = Image::read(&bytes) else { continue };
            for index in 0..image.functions.len() {
                let [quick, full] = [true, false].map(|predecodes| {
                    let wanted = Wanted { predecodes, exits: true };
                    let part = Part::decode(&image, index..index + 1, wanted);
                    format!("{:?}", (part.functions, part.branches, part.taken, part.indirect))
                });
                assert_eq!(quick, full, "{} {}", path.display(), image.functions[index].name);
            }
        }
    }
}
