//! Decodes every function once and notes what the tactics need: who branches where, which call sites a
//! function has, whose address is taken, who reads its own return address.
//!
//! Decoding is linear within a function's extent, as compilers emit it. A function in which the decoder
//! meets bytes that are no instruction is marked [`FunctionFlow::undecodable`]: what was read of it still
//! warns ("something seems to branch there") but is never patched.

use crate::image::{Image, ImageKind};
use crate::parallel;
use crate::registers::{self, Registers, Scan};
use crate::relocate::{falls_through, is_call};
use crate::return_slot::{self, Watch};
use crate::sort;
use crate::start::{Head, hook_point, owner};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpKind, Register,
};

/// Branches inside a function are of interest only where they lead near its start: no tactic overwrites
/// or relocates more than this many bytes.
pub const NEAR: u64 = 96;

/// A direct call, jump or conditional jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Branch {
    pub target: u64,
    /// Address of the branch instruction.
    pub site: u64,
    /// Index of the function that contains the site.
    pub function: u32,
    /// Bytes of the instruction.
    pub len: u8,
    /// Bytes of its displacement, the instruction's last ones: 1 or 4.
    pub width: u8,
    pub kind: BranchKind,
    /// r10 may be as it was when the function was entered.
    pub passes_r10: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BranchKind {
    Call,
    /// Unconditional.
    Jump,
    /// jcc, loop, jrcxz, xbegin.
    Conditional,
}

impl Branch {
    /// Address after the instruction: for a call, the return address.
    pub fn end(&self) -> u64 {
        self.site + u64::from(self.len)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct FunctionFlow {
    pub undecodable: bool,
    /// Has an own way with its return slot: reads it (`__builtin_return_address(0)`), or takes its
    /// arguments off the stack when it returns, or jumps to a function that does.
    pub odd_return: bool,
    /// A bit for each frame above its own whose return address it reads: see [`return_slot::Uses::callers`].
    pub(crate) reads_callers: u8,
    /// A jump table or label table leads back to its first instruction.
    pub table_loops: bool,
    /// It calls nothing, makes no system call, and ends with its own return: control is nowhere else between
    /// its entry and its exit.
    pub leaf: bool,
    /// Its last instruction is neither a jump, a return nor a call: control runs on into the next function.
    pub runs_on: bool,
    /// It calls itself directly.
    pub recursive: bool,
    pub registers: Registers,
    pub head: Head,
}

#[derive(Debug, Default)]
pub struct Flow {
    /// Sorted by target, then by site. Branches inside a function only when they lead to its first
    /// [`NEAR`] bytes.
    branches: Vec<Branch>,
    /// For each function of the image, the first branch that leads to its start or behind.
    first: Vec<usize>,
    /// One for each function of the image.
    pub functions: Vec<FunctionFlow>,
    /// Sorted: addresses in code that instructions compute (`lea`, immediates) or read, or data holds.
    pub taken: Vec<u64>,
    /// Sorted: targets of indirect branches near the start of the function they lie in.
    pub indirect: Vec<u64>,
}

impl Flow {
    pub fn of(image: &Image) -> Flow {
        let count = image.functions.len();
        let bounds = even_bounds(image, parallel::parts(count));
        let ranges = bounds.windows(2).map(|w| w[0]..w[1]).collect();
        let parts = parallel::each(ranges, |functions| Part::decode(image, functions));
        let mut flow = Flow::default();
        flow.branches.reserve(parts.iter().map(|part| part.branches.len()).sum());
        flow.functions.reserve(count);
        for part in parts {
            flow.branches.extend(part.branches);
            flow.functions.extend(part.functions);
            flow.taken.extend(part.taken);
            flow.indirect.extend(part.indirect);
        }
        flow.functions.resize(count, FunctionFlow { undecodable: true, ..Default::default() });
        // Sorted runs, which a stable sort only merges.
        flow.branches.sort_by_key(|b| b.target);
        flow.first = first_branches(image, &flow.branches);
        flow.spread_to_callers(image);
        flow.spread_odd_returns(image);
        flow.indirect.extend(image.landing_pads.iter().copied());
        for &pointer in &image.code_pointers {
            // A pointer to a function's start is the function's address; one to its inside is a label.
            match function_at(image, pointer) {
                Some(i) if image.functions[i].address == pointer => flow.taken.push(pointer),
                Some(i) if pointer - image.functions[i].address < NEAR => flow.indirect.push(pointer),
                _ => {}
            }
        }
        flow.taken.extend(image.exported.iter().copied());
        flow.taken.sort_unstable();
        flow.taken.dedup();
        flow.indirect.sort_unstable();
        flow.indirect.dedup();
        registers::spread(image, &mut flow);
        flow
    }

    /// A function that reads the return address of its caller's frame must find the true one there, and so up the
    /// stack, as far as the callers are known: who calls through a pointer is not.
    fn spread_to_callers(&mut self, image: &Image) {
        for reader in 0..self.functions.len() {
            let levels = self.functions[reader].reads_callers;
            let mut callees = vec![reader];
            for level in 1..=return_slot::FARTHEST {
                if levels >> level == 0 {
                    break;
                }
                self.add_jumpers(image, &mut callees);
                let mut callers = Vec::new();
                for &callee in &callees {
                    let into = self.branches_into(callee, image.functions[callee].address + 1);
                    let calls = into.iter().filter(|b| b.kind == BranchKind::Call);
                    callers.extend(calls.map(|b| owner(image, b.function as usize)));
                }
                callers.sort_unstable();
                callers.dedup();
                if levels & 1 << level != 0 {
                    for &caller in &callers {
                        self.functions[caller].odd_return = true;
                    }
                }
                callees = callers;
            }
        }
    }

    /// Adds the functions that jump to one of these: their frames are one and the same.
    fn add_jumpers(&self, image: &Image, functions: &mut Vec<usize>) {
        let mut next = 0;
        while let Some(&to) = functions.get(next) {
            next += 1;
            for b in self.branches_into(to, image.functions[to].address + 1) {
                let from = owner(image, b.function as usize);
                if b.kind != BranchKind::Call && !functions.contains(&from) {
                    functions.push(from);
                }
            }
        }
    }

    /// A function that tail-calls one with an odd return returns as oddly.
    fn spread_odd_returns(&mut self, image: &Image) {
        let mut work: Vec<usize> =
            (0..self.functions.len()).filter(|&i| self.functions[i].odd_return).collect();
        while let Some(to) = work.pop() {
            let f = &image.functions[to];
            let coming = self.branches_into(to, f.address + f.size.max(1));
            let jumps = coming.iter().filter(|b| b.kind != BranchKind::Call);
            let callers: Vec<usize> = jumps.map(|b| b.function as usize).collect();
            for from in callers {
                if !std::mem::replace(&mut self.functions[from].odd_return, true) {
                    work.push(from);
                }
            }
        }
    }

    /// Branches with targets in `lo..hi`, sorted by target.
    pub fn branches_to(&self, lo: u64, hi: u64) -> &[Branch] {
        let from = self.branches.partition_point(|b| b.target < lo);
        let len = self.branches[from..].partition_point(|b| b.target < hi);
        &self.branches[from..from + len]
    }

    /// The same for targets from the start of function `index` on, without a search.
    pub fn branches_into(&self, index: usize, hi: u64) -> &[Branch] {
        let from = &self.branches[self.first[index]..];
        &from[..from.iter().take_while(|b| b.target < hi).count()]
    }

    /// Branches that do not lead to the start of a function.
    pub fn to_no_start<'a>(&'a self, image: &'a Image) -> impl Iterator<Item = &'a Branch> {
        let mut starts = image.functions.iter().map(|f| f.address).peekable();
        self.branches.iter().filter(move |b| {
            while starts.next_if(|&start| start < b.target).is_some() {}
            starts.peek() != Some(&b.target)
        })
    }

    pub fn is_taken(&self, address: u64) -> bool {
        self.taken.binary_search(&address).is_ok()
    }

    /// Whether an instruction computes or reads an address in `lo..hi`.
    pub fn is_taken_in(&self, lo: u64, hi: u64) -> bool {
        self.taken.get(self.taken.partition_point(|&t| t < lo)).is_some_and(|&t| t < hi)
    }

    /// Indirect targets in `lo..hi`.
    pub fn indirect_in(&self, lo: u64, hi: u64) -> &[u64] {
        let from = self.indirect.partition_point(|&t| t < lo);
        let len = self.indirect[from..].partition_point(|&t| t < hi);
        &self.indirect[from..from + len]
    }
}

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

/// The function whose extent holds `address`.
pub fn function_at(image: &Image, address: u64) -> Option<usize> {
    let i = image.functions.partition_point(|f| f.address <= address).checked_sub(1)?;
    let f = &image.functions[i];
    (address < f.address + f.size.max(1)).then_some(i)
}

fn first_branches(image: &Image, branches: &[Branch]) -> Vec<usize> {
    let mut next = 0;
    let first = image.functions.iter().map(|f| {
        next += branches[next..].iter().take_while(|b| b.target < f.address).count();
        next
    });
    first.collect()
}

/// Splits the functions so that each part has about the same number of bytes.
fn even_bounds(image: &Image, parts: usize) -> Vec<usize> {
    let total: u64 = image.functions.iter().map(|f| f.size).sum();
    let mut bounds = vec![0];
    let mut seen = 0;
    for (i, f) in image.functions.iter().enumerate() {
        seen += f.size;
        if seen * parts as u64 >= total * bounds.len() as u64 && bounds.len() < parts {
            bounds.push(i + 1);
        }
    }
    bounds.push(image.functions.len());
    bounds
}

#[derive(Default)]
struct Part {
    branches: Vec<Branch>,
    functions: Vec<FunctionFlow>,
    taken: Vec<u64>,
    indirect: Vec<u64>,
}

impl Part {
    fn decode(image: &Image, range: std::ops::Range<usize>) -> Part {
        let mut part = Part::default();
        part.branches.reserve(range.len() * 8);
        let mut factory = InstructionInfoFactory::new();
        for i in range {
            let flow = part.function(image, i, &mut factory);
            part.functions.push(flow);
        }
        // They come in the order of their sites, which a stable sort keeps.
        sort::by_key(&mut part.branches, |b| b.target);
        part
    }

    fn function(
        &mut self,
        image: &Image,
        index: usize,
        factory: &mut InstructionInfoFactory,
    ) -> FunctionFlow {
        let mut scan = Scan::default();
        let f = &image.functions[index];
        let mut flow = FunctionFlow { leaf: true, ..Default::default() };
        let Some(bytes) = image.code_at(f.address, f.size) else {
            return FunctionFlow { undecodable: true, ..Default::default() };
        };
        let (lo, hi) = (f.address, f.address + f.size);
        // A `.cold` part belongs to its parent: a jump from it to the parent's entry is a loop there.
        let mut decoder = Decoder::with_ip(64, bytes, lo, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        let mut watch = Watch::new(f.kind);
        let mut tables: Vec<u64> = Vec::new();
        let mut indirect_jump = false;
        let mut own_start = false;
        let hook = hook_point(image, f);
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                flow.undecodable = true;
                break;
            }
            let control = instruction.flow_control();
            scan.look(&instruction, control, factory);
            flow.head.look(&instruction, hook);
            flow.leaf &= stays(&instruction, control, lo, hi);
            watch.look(&instruction, control);
            flow.odd_return |= instruction.code() == Code::Retnq_imm16;
            match control {
                FlowControl::Next => {
                    own_start |= self.note_reference(image, &instruction, &mut tables) == Some(lo)
                }
                FlowControl::Call
                | FlowControl::UnconditionalBranch
                | FlowControl::ConditionalBranch
                | FlowControl::XbeginXabortXend => {
                    flow.recursive |= control == FlowControl::Call && instruction.near_branch_target() == lo;
                    self.note_branch(index, lo, hi, &instruction, scan.passes_r10)
                }
                FlowControl::IndirectBranch => {
                    indirect_jump = true;
                    if instruction.memory_base() == Register::None && !instruction.is_ip_rel_memory_operand()
                    {
                        tables.push(instruction.memory_displacement64());
                    }
                }
                _ => {}
            }
        }
        // What runs on behind its end goes on in another function.
        let falls_through = falls_through(&instruction);
        flow.leaf &= !flow.undecodable && !falls_through;
        flow.runs_on = falls_through && !is_call(&instruction);
        flow.registers = scan.finish();
        // Nobody calls the entry: what lies on the stack there are the program's arguments.
        if watch.is_suspicious() && f.address != image.entry {
            let uses = return_slot::examine(image, f, factory);
            flow.odd_return |= uses.own;
            flow.reads_callers = uses.callers;
        }
        if indirect_jump {
            for table in tables {
                self.note_table(image, table, lo, hi, &mut flow);
            }
        }
        flow.table_loops |= indirect_jump && own_start;
        flow.table_loops |= image.code_pointers.binary_search(&lo).is_ok() && indirect_jump && {
            // A label table holds other labels of the same function as well; a table of function
            // pointers holds only starts.
            let from = image.code_pointers.partition_point(|&p| p <= lo);
            image.code_pointers.get(from).is_some_and(|&p| p < hi)
        };
        flow
    }

    fn note_branch(&mut self, index: usize, lo: u64, hi: u64, instruction: &Instruction, passes_r10: bool) {
        if !matches!(instruction.op0_kind(), OpKind::NearBranch64) {
            return;
        }
        let target = instruction.near_branch_target();
        let kind = match instruction.flow_control() {
            FlowControl::Call => BranchKind::Call,
            FlowControl::UnconditionalBranch => BranchKind::Jump,
            _ => BranchKind::Conditional,
        };
        if (lo..hi).contains(&target) && target - lo >= NEAR {
            return;
        }
        let width = match instruction.code() {
            Code::Jmp_rel32_64 | Code::Call_rel32_64 | Code::Xbegin_rel32 => 4,
            code if code.is_jcc_near() => 4,
            code if code.is_jmp_short() || code.is_jcc_short() || code.is_loop() || code.is_jcx_short() => 1,
            code if code.is_loopcc() => 1,
            _ => return,
        };
        self.branches.push(Branch {
            target,
            site: instruction.ip(),
            function: index as u32,
            len: instruction.len() as u8,
            width,
            kind,
            passes_r10,
        });
    }

    /// The address of code or of a table that an instruction computes.
    fn note_reference(
        &mut self,
        image: &Image,
        instruction: &Instruction,
        tables: &mut Vec<u64>,
    ) -> Option<u64> {
        let address = if instruction.is_ip_rel_memory_operand() {
            if instruction.code() != Code::Lea_r64_m {
                // Data among the code.
                self.taken.extend(Some(instruction.ip_rel_memory_address()).filter(|&a| image.is_code(a)));
                return None;
            }
            instruction.ip_rel_memory_address()
        } else if instruction.op_count() == 2 {
            // Non-PIC code takes addresses as 32-bit immediates. In a PIE they are numbers.
            match instruction.op1_kind() {
                OpKind::Immediate32 | OpKind::Immediate32to64 if image.kind == ImageKind::Pie => return None,
                OpKind::Immediate32 => u64::from(instruction.immediate32()),
                OpKind::Immediate32to64 => instruction.immediate32to64() as u64,
                OpKind::Immediate64 => instruction.immediate64(),
                _ => return None,
            }
        } else {
            return None;
        };
        if address < image.lo || address >= image.hi {
            return None;
        }
        if image.is_code(address) {
            self.taken.push(address);
        } else {
            tables.push(address);
        }
        Some(address)
    }

    /// A table of 32-bit distances from itself (position-independent switch) or of addresses (ET_EXEC
    /// switch, label table). Read as long as the entries lead into the function.
    fn note_table(&mut self, image: &Image, table: u64, lo: u64, hi: u64, flow: &mut FunctionFlow) {
        const MOST: u64 = 4096;
        let mut note = |target: u64| {
            if target == lo {
                flow.table_loops = true;
            } else if target - lo < NEAR {
                self.indirect.push(target);
            }
        };
        for i in 0..MOST {
            let Some(&[a, b, c, d]) = image.data_at(table + 4 * i, 4) else { break };
            let target = table.wrapping_add(i32::from_le_bytes([a, b, c, d]) as u64);
            if !(lo..hi).contains(&target) {
                break;
            }
            note(target);
        }
        for i in 0..MOST {
            let Some(Ok(word)) = image.data_at(table + 8 * i, 8).map(<[u8; 8]>::try_from) else { break };
            let target = u64::from_le_bytes(word);
            if !(lo..hi).contains(&target) {
                break;
            }
            note(target);
        }
    }
}
