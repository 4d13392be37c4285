//! Finds out whether an indirect jump of a function may lead to its first instruction without being a tail call.
//!
//! A `goto` through a label table and a tail call through a table of functions are the same instruction, and both may lead to the start of
//! the function that executes it: a state machine whose states are functions, or an interpreter that ends each operation in a tail call,
//! calls itself in this way. The first is a loop, the second a call. These facts tell them apart:
//!
//! - *The stack.* At a tail call, the function's frame is gone: the return address is on top of the stack. At its first instruction, it
//!   is there as well. So a jump with a frame does not lead there, and a function that begins by making its frame has no label there.
//! - *The other targets.* A `goto` with only one label is a direct jump. So there are other labels: a table from which the jump takes
//!   its target, or some other table or instruction, has the address of another place in the same function. No call leads to such a
//!   place. A table of functions contains starts of functions only, those of others or that of this one, in any order.
//!
//! It does not matter whether the table is in the program's data at all: what is not known to contain labels of the function contains
//! none. The one exception is hand-written code that jumps to its own start by a register that has this address in any case.

use crate::flow::read::jumps;
use gprofinject_image::frames::unwind::Cfas;
use gprofinject_image::{Function, FunctionKind, Image, JumpTable};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic};
use iced_x86::{OpKind, Register};

/// What the pass over a function has found.
pub(crate) struct Found<'s> {
    /// The addresses of data that the function computes or jumps through.
    pub(crate) tables: &'s [u64],
    /// The addresses of code that it computes or reads.
    pub(crate) taken: &'s [u64],
    /// Whether it computes its own address.
    pub(crate) own_start: bool,
}

/// What leads from a function's indirect jumps to its first instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loops {
    /// Whether a jump that is no tail call may lead there.
    pub(crate) by_label: bool,
    /// Whether a tail call through a table of functions leads there as well.
    pub(crate) by_call: bool,
}

/// Returns what leads from the function's indirect jumps to its first instruction.
pub(crate) fn of(image: &Image, f: &Function, found: &Found, factory: &mut InstructionInfoFactory) -> Loops {
    const NONE: Loops = Loops { by_label: false, by_call: false };
    let Some(bytes) = image.code_at(f.address, f.size) else { return NONE };
    let instructions = || Decoder::with_ip(64, bytes, f.address, DecoderOptions::NONE).into_iter();
    let first = instructions().find(|i| !matches!(i.mnemonic(), Mnemonic::Endbr64 | Mnemonic::Nop));
    if first.is_some_and(|i| makes_frame(&i)) {
        return NONE;
    }
    let mut own = found.tables.to_vec();
    own.sort_unstable();
    own.dedup();
    let forms: [fn(u64) -> JumpTable; 2] = [JumpTable::Distances, JumpTable::Addresses];
    let all: Vec<Labels> =
        own.iter().flat_map(|&table| forms.map(|form| Labels::of(image, f, form(table), &own))).collect();
    let is_within = |address: &&u64| (f.address + 1..f.address + f.size).contains(*address);
    let has_start_in_table = all.iter().any(|labels| labels.has_start && !labels.within.is_empty());
    // Labels that data contains, or that instructions compute.
    let from = image.details().code_pointers.partition_point(|&pointer| pointer <= f.address);
    let in_data = image.details().code_pointers[from..].iter().take_while(is_within);
    let is_start_in_data = image.details().code_pointers.binary_search(&f.address).is_ok();
    // Go's linker takes the address of each table in one instruction, so that all of them have been read above.
    let unexplained = in_data.filter(|_| !image.facts.go && (is_start_in_data || found.own_start)).copied();
    let mut unexplained: Vec<u64> = unexplained.collect();
    let is_computed = found.own_start && found.taken.iter().any(|a| is_within(&a));
    let always = found.own_start && always_leads_to(f.address, instructions());
    if !has_start_in_table && unexplained.is_empty() && !is_computed {
        return Loops { by_label: always, ..NONE };
    }
    let mut places: Vec<u64> = all.iter().flat_map(|labels| labels.within.iter().copied()).collect();
    places.extend(
        instructions().filter(|i| i.op0_kind() == OpKind::NearBranch64).map(|i| i.near_branch_target()),
    );
    places.extend(&unexplained);
    places.sort_unstable();
    let frames = image.cfas(f.address);
    let mut explained = Vec::new();
    let (mut loops, mut by_call) = (false, false);
    let mut has_unknown = false;
    jumps::each(image, f, &places, factory, |jump, tables| {
        let may_be_label = may_have_no_frame(frames.as_ref(), jump);
        let labels = tables.iter().map(|&table| Labels::of(image, f, table, &own));
        for labels in labels {
            loops |= may_be_label && labels.has_start && !labels.within.is_empty();
            by_call |= may_be_label && labels.has_start && labels.within.is_empty();
            explained.extend(labels.within);
        }
        has_unknown |= may_be_label && tables.is_empty();
        true
    });
    // A jump whose table is not known may lead to every label that no other jump accounts for. The labels of a table without the start
    // are the targets of a jump that does not lead there.
    explained.extend(
        all.iter().filter(|labels| !labels.has_start).flat_map(|labels| labels.within.iter().copied()),
    );
    unexplained.retain(|label| !explained.contains(label));
    let by_unknown = has_unknown && (has_start_in_table || is_computed || !unexplained.is_empty());
    Loops { by_label: loops || by_unknown || always, by_call }
}

/// The labels of a function to which a table leads.
struct Labels {
    /// Those behind the function's start, and those in cold parts.
    within: Vec<u64>,
    /// Whether an entry leads to the function's start.
    has_start: bool,
}

impl Labels {
    /// Reads a table, up to the first entry that is no label of the function or the next one of the tables `others`, which are sorted.
    /// A table that leads to the start of another function before it leads into this one contains functions.
    fn of(image: &Image, f: &Function, table: JumpTable, others: &[u64]) -> Labels {
        let mut labels = Labels { within: Vec::new(), has_start: false };
        let start = table.entry(0);
        let end = others.get(others.partition_point(|&other| other <= start)).copied().unwrap_or(u64::MAX);
        for (i, target) in table.targets(image).enumerate() {
            if table.entry(i) >= end {
                break;
            }
            let is_cold = |i: usize| matches!(image.functions[i].kind, FunctionKind::Cold(_));
            // Compilers let impossible cases lead to the function's end. If another function begins there, it may be meant.
            let is_end = target == f.address + f.size && image.function_at(target).is_none();
            if target == f.address {
                labels.has_start = true;
            } else if (f.address..f.address + f.size).contains(&target)
                || image.function_at(target).is_some_and(is_cold)
            {
                labels.within.push(target);
            } else if !is_end {
                break;
            }
        }
        labels
    }
}

/// Returns whether the function's frame may be gone at a jump, as far as its frame description says.
fn may_have_no_frame(frames: Option<&Cfas>, jump: &Instruction) -> bool {
    const RSP: u16 = 7;
    let cfa = frames.filter(|frames| frames.covers(jump.ip())).and_then(|frames| frames.at(jump.ip()));
    cfa.is_none_or(|cfa| cfa == (RSP, 8))
}

/// Returns whether an instruction makes room on the stack.
fn makes_frame(i: &Instruction) -> bool {
    let is_sub = matches!(i.code(), Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32);
    i.mnemonic() == Mnemonic::Push || is_sub && i.op0_register() == Register::RSP
}

/// Returns whether an indirect jump leads to this address in any case, as far as the instructions before it show.
fn always_leads_to(address: u64, instructions: impl Iterator<Item = Instruction>) -> bool {
    let mut holder = Register::None;
    for i in instructions {
        let first =
            if i.op0_kind() == OpKind::Register { i.op0_register().full_register() } else { Register::None };
        match i.flow_control() {
            FlowControl::IndirectBranch if first != Register::None && first == holder => return true,
            FlowControl::Next if i.code() == Code::Lea_r64_m && i.is_ip_rel_memory_operand() => {
                let is_it = i.ip_rel_memory_address() == address;
                holder = if is_it {
                    first
                } else if first == holder {
                    Register::None
                } else {
                    holder
                };
            }
            FlowControl::Next
                if first == holder && !matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Test) =>
            {
                holder = Register::None;
            }
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests;
