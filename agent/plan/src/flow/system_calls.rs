//! The `syscall` instructions of a program, the numbers of the system calls that they make, and the instructions around
//! them that nothing enters in the middle.
//!
//! The number is known if the instructions before the `syscall`, from the last one on to which anything branches, have put
//! a constant into eax. Otherwise it is unknown, as in libc's `syscall()`, which takes it as an argument.
//!
//! Code between functions counts here too, if all of its instructions up to the `syscall` can be decoded: the assembly of
//! a C library that was built without frame descriptions, as musl is, and whose symbols have been removed.

use crate::flow::branch::NEAR;
use crate::flow::facts::Flow;
use crate::flow::read::unread::between_functions;
use crate::parallel;
use gprofinject_image::x86::{falls_through, has_branch, is_call};
use gprofinject_image::{Function, FunctionKind, Image};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// The number of bytes before and after a `syscall` within which instructions are of interest.
const AROUND: u64 = 24;

/// A `syscall` instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SystemCall {
    /// Its address.
    pub(crate) at: u64,
    /// The index in the image of the function that contains it, or `None` between functions.
    pub(crate) function: Option<usize>,
    /// The number of the system call, or `None` if it is not a constant.
    pub(crate) number: Option<u32>,
    /// The start of each instruction around the `syscall`, and the end of the last one. All of them can be relocated, and
    /// nothing leads to one of them except to the first. Empty if the bytes may not be instructions.
    pub(crate) run: Vec<u64>,
    /// Whether code computes the address after the instruction. Such code compares it with the address at which a signal
    /// has interrupted a thread (the cancellation points of musl, and of glibc from 2.41 on), so the instruction must stay
    /// where it is.
    pub(crate) is_compared: bool,
}

impl SystemCall {
    /// Returns the address after the instruction.
    pub(crate) fn end(&self) -> u64 {
        self.at + SYSCALL.len() as u64
    }
}

/// Code whose instructions are decoded together, because it may branch within itself: a function with its cold parts, or
/// the code between two functions.
struct Unit {
    /// The function, or `None` between functions.
    function: Option<usize>,
    /// Its parts.
    parts: Vec<Range<u64>>,
}

/// Returns the `syscall` instructions of a program, sorted by address.
pub(crate) fn find(image: &Image, flow: &Flow) -> Vec<SystemCall> {
    let gaps = between_functions(image);
    let is_wanted = |range: &Range<u64>| has_system_call(image, range);
    let strays = if gaps.iter().any(is_wanted) { Strays::of(image, &gaps) } else { Strays::default() };
    let mut units: BTreeMap<usize, Unit> = BTreeMap::new();
    let range_of = |i: usize| {
        first_instruction(image, &image.functions[i])..image.functions[i].address + image.functions[i].size
    };
    for i in (0..image.functions.len()).filter(|&i| is_wanted(&range_of(i))) {
        let owner = image.owner(i);
        units.entry(owner).or_insert_with(|| Unit { function: Some(owner), parts: vec![range_of(owner)] });
    }
    for (i, f) in image.functions.iter().enumerate() {
        if let FunctionKind::Cold(Some(parent)) = f.kind
            && let Some(unit) = units.get_mut(&parent)
        {
            unit.parts.push(range_of(i));
        }
    }
    let mut units: Vec<Unit> = units.into_values().collect();
    let gaps = gaps.into_iter().filter(is_wanted);
    units.extend(gaps.map(|gap| Unit { function: None, parts: vec![gap] }));
    let batch = units.len().div_ceil(parallel::parts(image.functions.len())).max(1);
    let found = parallel::each(units.chunks(batch).collect(), |units| {
        let mut found = Vec::new();
        for unit in units {
            unit.look(image, flow, &strays, &mut found);
        }
        found
    });
    let mut found: Vec<SystemCall> = found.into_iter().flatten().collect();
    found.sort_unstable_by_key(|call| call.at);
    found
}

/// Returns the address of a function's first instruction. The frame description of a signal restorer begins one byte
/// before it, for the sake of unwinders, and without a symbol nothing else tells where the restorer begins.
fn first_instruction(image: &Image, f: &Function) -> u64 {
    // mov rax, 15; syscall, by which unwinders recognise it, and the shorter form
    const RESTORERS: [&[u8]; 2] =
        [&[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05], &[0xb8, 15, 0, 0, 0, 0x0f, 0x05]];
    let after = image.code_from(f.address + 1).unwrap_or_default();
    let is_early = f.frame == Some(false) && RESTORERS.iter().any(|restorer| after.starts_with(restorer));
    f.address + u64::from(is_early)
}

/// Returns whether the bytes of a `syscall` are in the range.
fn has_system_call(image: &Image, range: &Range<u64>) -> bool {
    let bytes = image.code_at(range.start, range.end - range.start).unwrap_or_default();
    bytes.windows(SYSCALL.len()).any(|bytes| bytes == SYSCALL)
}

/// Where the code between functions leads, as far as it can be decoded.
#[derive(Default)]
struct Strays {
    /// The targets of its branches, sorted.
    targets: Vec<u64>,
    /// The addresses in code that it computes, sorted.
    taken: Vec<u64>,
}

impl Strays {
    /// Decodes all code between functions.
    fn of(image: &Image, gaps: &[Range<u64>]) -> Strays {
        let mut strays = Strays::default();
        for gap in gaps {
            let bytes = image.code_at(gap.start, gap.end - gap.start).unwrap_or_default();
            let decoder = Decoder::with_ip(64, bytes, gap.start, DecoderOptions::NONE);
            for i in decoder.into_iter().take_while(|i| !i.is_invalid()) {
                strays.targets.extend(has_branch(&i).then(|| i.near_branch_target()));
                strays.taken.extend(computed(image, &i).filter(|&address| image.is_code(address)));
            }
        }
        strays.targets.sort_unstable();
        strays.taken.sort_unstable();
        strays
    }
}

/// Returns the addresses in an instruction that it may compute.
fn computed<'a>(image: &'a Image, i: &'a Instruction) -> impl Iterator<Item = u64> + 'a {
    let relative = i.is_ip_rel_memory_operand().then(|| i.ip_rel_memory_address());
    let others = (0..i.op_count()).filter_map(|n| match i.op_kind(n) {
        OpKind::Memory if !i.is_ip_rel_memory_operand() => Some(i.memory_displacement64()),
        OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64 => Some(i.immediate(n)),
        _ => None,
    });
    relative.into_iter().chain(others).filter(|&address| (image.lo..image.hi).contains(&address))
}

impl Unit {
    /// Adds the unit's `syscall` instructions.
    fn look(&self, image: &Image, flow: &Flow, strays: &Strays, found: &mut Vec<SystemCall>) {
        let mut parts = Vec::new();
        for part in &self.parts {
            let Some(bytes) = image.code_at(part.start, part.end - part.start) else { continue };
            let decoder = Decoder::with_ip(64, bytes, part.start, DecoderOptions::NONE);
            let code: Vec<Instruction> = decoder.into_iter().take_while(|i| !i.is_invalid()).collect();
            let end = code.last().map_or(part.start, Instruction::next_ip);
            parts.push((part, code, end == part.end));
        }
        let targets = self.targets(image, flow, strays, parts.iter().flat_map(|(_, code, _)| code));
        for (part, code, is_whole) in &parts {
            // Compilers put no data among code, so what is decoded up to a byte that begins no instruction may not have
            // been code either.
            let first = found.len();
            self.look_at(flow, strays, code, &targets, found);
            if !is_whole
                || self.function.is_none() && !is_entered_at_instructions(image, flow, strays, part, code)
            {
                found[first..].iter_mut().for_each(|call| call.run.clear());
            }
            if !is_whole {
                let end = code.last().map_or(part.start, Instruction::next_ip);
                found.extend(self.undecoded(image, end..part.end));
            }
        }
    }

    /// Returns the addresses in the unit to which something may lead.
    fn targets<'a>(
        &self,
        image: &Image,
        flow: &Flow,
        strays: &Strays,
        code: impl Iterator<Item = &'a Instruction>,
    ) -> BTreeSet<u64> {
        let mut targets = BTreeSet::new();
        let mut tables = Vec::new();
        let mut jumps_indirectly = false;
        for i in code {
            targets.extend(has_branch(i).then(|| i.near_branch_target()));
            jumps_indirectly |= i.flow_control() == FlowControl::IndirectBranch;
            tables.extend(computed(image, i).filter(|&address| image.may_be_data(address)));
        }
        if jumps_indirectly {
            tables.iter().for_each(|&table| self.table(image, table, &mut targets));
        }
        for part in &self.parts {
            let sorted = |list: &[u64]| {
                let from = list.partition_point(|&address| address < part.start);
                let len = list[from..].partition_point(|&address| address < part.end);
                list[from..from + len].to_vec()
            };
            targets.extend(flow.branches_to(part.start, part.end).iter().map(|branch| branch.target));
            targets.extend(flow.indirect_in(part.start, part.end));
            for list in [
                &flow.taken,
                &flow.entered_unseen,
                &image.details().code_pointers,
                &image.details().landing_pads,
                &strays.targets,
                &strays.taken,
            ] {
                targets.extend(sorted(list));
            }
        }
        targets
    }

    /// Adds the entries of a jump table that lead into the unit: distances from the table, or addresses. Each list is read
    /// for as long as its entries lead there.
    fn table(&self, image: &Image, table: u64, targets: &mut BTreeSet<u64>) {
        const MOST: u64 = 4096;
        let is_own = |target: &u64| self.parts.iter().any(|part| part.contains(target));
        let distance = |n: u64| {
            let word = image.data_at(table.wrapping_add(4 * n), 4)?.first_chunk()?;
            Some(table.wrapping_add(i32::from_le_bytes(*word) as u64))
        };
        let address = |n: u64| {
            let word = image.data_at(table.wrapping_add(8 * n), 8)?.first_chunk()?;
            Some(u64::from_le_bytes(*word))
        };
        targets.extend((0..MOST).map_while(distance).take_while(is_own));
        targets.extend((0..MOST).map_while(address).take_while(is_own));
    }

    /// Adds the `syscall` instructions among consecutive instructions.
    fn look_at(
        &self,
        flow: &Flow,
        strays: &Strays,
        code: &[Instruction],
        targets: &BTreeSet<u64>,
        found: &mut Vec<SystemCall>,
    ) {
        let mut constants = Constants { registers: [None; 16], factory: InstructionInfoFactory::new() };
        for (n, i) in code.iter().enumerate() {
            if targets.contains(&i.ip()) {
                constants.registers = [None; 16];
            }
            if i.code() == Code::Syscall {
                let end = i.next_ip();
                found.push(SystemCall {
                    at: i.ip(),
                    function: self.function,
                    number: constants.registers[Register::RAX.number()],
                    run: run(code, n, targets),
                    is_compared: flow.is_taken(end) || strays.taken.binary_search(&end).is_ok(),
                });
            }
            constants.step(i, n.checked_sub(1).map(|before| &code[before]));
        }
    }

    /// Returns what looks like system calls with a constant number in bytes that cannot be decoded.
    fn undecoded<'a>(&'a self, image: &'a Image, range: Range<u64>) -> impl Iterator<Item = SystemCall> + 'a {
        // mov eax, imm32; syscall
        const LEN: usize = 7;
        let start = range.start;
        let bytes = image.code_at(start, range.end - start).unwrap_or_default();
        let calls =
            bytes.windows(LEN).enumerate().filter(|(_, code)| code[0] == 0xb8 && code[5..] == SYSCALL);
        calls.filter_map(move |(at, code)| {
            Some(SystemCall {
                at: start + at as u64 + 5,
                function: self.function,
                number: Some(u32::from_le_bytes(*code[1..].first_chunk()?)),
                run: Vec::new(),
                is_compared: false,
            })
        })
    }
}

/// Returns whether all branches into code between functions lead to the instructions that have been decoded there, or
/// behind the `lock` of one. They do not if the bytes before the code are data or padding that decodes to the wrong
/// instructions.
fn is_entered_at_instructions(
    image: &Image,
    flow: &Flow,
    strays: &Strays,
    part: &Range<u64>,
    code: &[Instruction],
) -> bool {
    const LOCK: [u8; 1] = [0xf0];
    let begins = |address: u64| code.binary_search_by_key(&address, Instruction::ip).is_ok();
    let is_locked =
        |address: u64| begins(address - 1) && image.code_at(address - 1, 1).is_some_and(|b| b == LOCK);
    let from = strays.targets.partition_point(|&target| target < part.start);
    let own = strays.targets[from..].iter().copied().take_while(|&target| target < part.end);
    let others = flow.branches_to(part.start, part.end).iter().map(|branch| branch.target);
    own.chain(others).all(|target| begins(target) || is_locked(target))
}

/// Returns the starts of the instructions around number `n`, and the end of the last one: see [`SystemCall::run`].
fn run(code: &[Instruction], n: usize, targets: &BTreeSet<u64>) -> Vec<u64> {
    let (lo, hi) = match (code.first(), code.last()) {
        (Some(first), Some(last)) => (first.ip(), last.next_ip()),
        _ => return Vec::new(),
    };
    let is_movable = |i: &Instruction| {
        // Branches that lead elsewhere may be redirected by other patches.
        let stays = has_branch(i) && (lo + NEAR..hi).contains(&i.near_branch_target());
        !is_call(i) && matches!(i.flow_control(), FlowControl::Next | FlowControl::Return)
            || stays && !is_call(i)
    };
    let at = code[n].ip();
    let mut first = n;
    while let Some(before) = first.checked_sub(1)
        && at - code[before].ip() <= AROUND
        && !targets.contains(&code[first].ip())
        && is_movable(&code[before])
        && falls_through(&code[before])
    {
        first = before;
    }
    let mut last = n;
    while let Some(next) = code.get(last + 1)
        && next.next_ip() - at <= AROUND
        && falls_through(&code[last])
        && !targets.contains(&next.ip())
        && is_movable(next)
    {
        last += 1;
    }
    code[first..=last].iter().map(Instruction::ip).chain([code[last].next_ip()]).collect()
}

/// The constants in the general registers.
struct Constants {
    /// The lower half of each register, by its number.
    registers: [Option<u32>; 16],
    /// Finds which registers an instruction writes.
    factory: InstructionInfoFactory,
}

impl Constants {
    /// Follows an instruction. `before` is the one before it.
    fn step(&mut self, i: &Instruction, before: Option<&Instruction>) {
        if !falls_through(i)
            || i.is_call_near()
            || i.is_call_far()
            || i.flow_control() == FlowControl::IndirectCall
        {
            self.registers = [None; 16];
            return;
        }
        let value = self.value(i, before);
        for used in self.factory.info(i).used_registers() {
            let is_written =
                !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
            let register = used.register().full_register();
            if is_written && register.is_gpr64() {
                self.registers[register.number()] = None;
            }
        }
        if i.code() == Code::Syscall {
            self.registers[Register::RAX.number()] = None;
        }
        if let Some((register, value)) = value {
            self.registers[register.full_register().number()] = Some(value);
        }
    }

    /// Returns the register into which an instruction puts a constant, and the constant.
    fn value(&self, i: &Instruction, before: Option<&Instruction>) -> Option<(Register, u32)> {
        let to = i.op0_register();
        if i.op0_kind() != OpKind::Register || !to.is_gpr() {
            return None;
        }
        let old = self.registers[to.full_register().number()];
        let is_whole = to.is_gpr32() || to.is_gpr64();
        let from_register = i.op_count() == 2 && i.op1_kind() == OpKind::Register;
        let is_immediate = i.op_count() == 2
            && matches!(
                i.op1_kind(),
                OpKind::Immediate8 | OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64
            );
        let value = match i.mnemonic() {
            Mnemonic::Mov if is_whole && is_immediate => i.immediate(1) as u32,
            Mnemonic::Mov if is_whole && from_register && i.op1_register().is_gpr() => {
                self.registers[i.op1_register().full_register().number()]?
            }
            // The four registers whose second byte has a name are numbered apart.
            Mnemonic::Mov if is_immediate && to.is_gpr8() && !is_second_byte(to) => {
                old? & !0xff | i.immediate8() as u32
            }
            Mnemonic::Xor | Mnemonic::Sub if is_whole && from_register && i.op1_register() == to => 0,
            Mnemonic::Pop if to.is_gpr64() => {
                let push = before.filter(|before| before.mnemonic() == Mnemonic::Push)?;
                match push.op0_kind() {
                    OpKind::Immediate8to64 | OpKind::Immediate32to64 => push.immediate(0) as u32,
                    _ => return None,
                }
            }
            _ => return None,
        };
        Some((to, value))
    }
}

/// Returns whether the register is bits 8 to 15 of another one.
fn is_second_byte(register: Register) -> bool {
    matches!(register, Register::AH | Register::BH | Register::CH | Register::DH)
}

#[cfg(test)]
mod tests;
