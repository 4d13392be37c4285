//! The second step of the analysis, for the functions that the first step finds suspicious: this module
//! follows return addresses, frame pointers and stack addresses along all paths of one function.
//! It computes the values before each instruction until they no longer change (a data-flow fixpoint), and
//! judges the instructions only then. A loop that walks from frame to frame therefore yields an unknown
//! value, not the value of its first iteration.

use crate::flow::return_slot::state::State;
use crate::flow::return_slot::state::Value::{Aligned, Frame, Return, Stack, Unknown};
use crate::flow::return_slot::uses::{RBP, RSP, Uses};
use gprofinject_image::frames::unwind::Cfas;
use gprofinject_image::{Function, FunctionKind, Image};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register, UsedMemory,
};

/// The instructions of a function, and what is known before each.
struct Ways<'i> {
    /// The instructions, in the order of their addresses.
    instructions: &'i [Instruction],
    /// The state before each instruction, or `None` as long as no path to it has been found.
    states: Vec<Option<State>>,
    /// Indices of instructions whose successors have to be computed again.
    work: Vec<usize>,
    /// The state at the last indirect jump, which is usually that of a `switch`.
    switch: Option<State>,
}

impl Ways<'_> {
    /// Returns the index of the instruction at an address.
    fn at(&self, address: u64) -> Option<usize> {
        self.instructions.binary_search_by_key(&address, Instruction::ip).ok()
    }

    /// Notes that control reaches an instruction in a state.
    fn reach(&mut self, index: usize, state: State) {
        match self.states.get_mut(index) {
            None => return,
            Some(Some(known)) => {
                if !known.meet(&state) {
                    return;
                }
            }
            Some(unknown) => *unknown = Some(state),
        }
        self.work.push(index);
    }

    /// Computes states until nothing changes any more.
    fn run(&mut self, factory: &mut InstructionInfoFactory) {
        while let Some(index) = self.work.pop() {
            let Some(mut state) = self.states[index].clone() else { continue };
            let i = &self.instructions[index];
            let target = (i.op0_kind() == OpKind::NearBranch64).then(|| i.near_branch_target());
            let inside = target.and_then(|target| self.at(target));
            match i.flow_control() {
                FlowControl::Next => {
                    state.step(i, factory);
                    self.reach(index + 1, state);
                }
                FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => {
                    if let Some(to) = inside {
                        self.reach(to, state.clone());
                    }
                    state.forget(i, factory);
                    self.reach(index + 1, state);
                }
                FlowControl::UnconditionalBranch => {
                    if let Some(to) = inside {
                        self.reach(to, state);
                    }
                }
                FlowControl::Call | FlowControl::IndirectCall => {
                    // A call inside the function is either a subroutine or, if it calls the next
                    // instruction, a way to compute the code's own address.
                    if let Some(to) = inside.filter(|&to| to != 0) {
                        let mut pushed = state.clone();
                        pushed.push(Unknown);
                        self.reach(to, pushed);
                        if to == index + 1 {
                            continue;
                        }
                    }
                    state.called();
                    self.reach(index + 1, state);
                }
                FlowControl::IndirectBranch => self.switch = Some(state),
                _ => {}
            }
        }
    }

    /// Computes states for code that no branch leads to: the cases of a `switch`, and landing pads.
    fn run_unreached(&mut self, description: &Description, factory: &mut InstructionInfoFactory) {
        for index in 0..self.instructions.len() {
            if self.states[index].is_some() {
                continue;
            }
            let before = index.checked_sub(1).map(|before| &self.instructions[before]);
            let fresh = before.is_none_or(|before| !matches!(before.flow_control(), FlowControl::Next));
            if !fresh {
                continue;
            }
            let state = self.switch.clone().or_else(|| described(description, self.instructions[index].ip()));
            if let Some(state) = state {
                self.reach(index, state);
                self.run(factory);
            }
        }
    }
}

/// The description of a function's frames in the unwind table.
struct Description<'i, 'd> {
    /// The program.
    image: &'i Image<'d>,
    /// The rows of the frame description that the function begins with, which is usually the only one.
    cfas: Option<Cfas>,
}

impl Description<'_, '_> {
    /// Returns the rule for the canonical frame address (CFA) at an address: a DWARF register number and
    /// an offset in bytes.
    fn cfa(&self, address: u64) -> Option<(u16, i64)> {
        match &self.cfas {
            Some(cfas) if cfas.covers(address) => cfas.at(address),
            _ => self.image.cfa(address),
        }
    }
}

/// Returns the state at an instruction according to the unwind table, or `None` if the table has no usable
/// CFA rule for it.
fn described(description: &Description, address: u64) -> Option<State> {
    let mut state = State { registers: [Unknown; 16], words: vec![(Stack(0), Return)] };
    match description.cfa(address)? {
        (6, offset) => state.registers[RBP] = Stack(8 - offset),
        (7, offset) => state.registers[RSP] = Stack(8 - offset),
        _ => return None,
    }
    Some(state)
}

/// Returns what a function does with return addresses. This is for functions that
/// [`Watch`](crate::flow::return_slot::watch::Watch) finds suspicious.
pub(crate) fn examine(image: &Image, function: &Function, factory: &mut InstructionInfoFactory) -> Uses {
    let mut uses = Uses::default();
    if !is_examined(image, function) {
        return uses;
    }
    let instructions = instructions(image, function);
    let states = vec![None; instructions.len()];
    let mut ways = Ways { instructions: &instructions, states, work: Vec::new(), switch: None };
    ways.reach(0, State::entry());
    ways.run(factory);
    let description = Description { image, cfas: image.cfas(function.address) };
    ways.run_unreached(&description, factory);
    // A description in which the stack pointer never moves, although the function moves it, cannot be
    // trusted. Checking the whole description takes long, so it is done only for the few functions that
    // need it.
    let mut is_described = None;
    for (i, state) in instructions.iter().zip(&ways.states) {
        let Some(state) = state else { continue };
        let callers = uses_callers(i, state);
        let own = uses_own(i, state, factory);
        if !own && callers == 0 {
            continue;
        }
        let moves = || instructions.iter().any(|i| description.cfa(i.ip()) != Some((7, 8)));
        if !*is_described.get_or_insert_with(moves) || agrees(&description, i, state) {
            uses.own |= own;
            uses.shifts |= own && computes_in_memory(i);
            uses.callers |= callers;
        }
    }
    uses
}

/// Returns the function's instructions, up to the first byte that begins none.
fn instructions(image: &Image, function: &Function) -> Vec<Instruction> {
    let bytes = image.code_at(function.address, function.size).unwrap_or_default();
    let decoder = Decoder::with_ip(64, bytes, function.address, DecoderOptions::NONE);
    decoder.into_iter().take_while(|i| !i.is_invalid()).collect()
}

/// Returns whether the return address is on top of the stack before an instruction of a function, as it is before a tail call;
/// `None` if that is not known. What the unwind table says is preferred, because it takes less time.
pub(crate) fn has_return_address_on_top(
    image: &Image,
    function: &Function,
    address: u64,
    factory: &mut InstructionInfoFactory,
) -> Option<bool> {
    if let Some(cfa) = image.cfa(address) {
        return Some(cfa == (7, 8));
    }
    if !is_examined(image, function) {
        return None;
    }
    let instructions = instructions(image, function);
    let states = vec![None; instructions.len()];
    let mut ways = Ways { instructions: &instructions, states, work: Vec::new(), switch: None };
    ways.reach(0, State::entry());
    ways.run(factory);
    ways.run_unreached(&Description { image, cfas: None }, factory);
    match ways.states[ways.at(address)?].as_ref()?.registers[RSP] {
        Stack(at) => Some(at == 0),
        Unknown => None,
        _ => Some(false),
    }
}

/// Returns whether the unwind table agrees with the followed values about the frame at an instruction. If
/// the table has no rule, it agrees. The two differ after a call that never returns.
fn agrees(description: &Description, i: &Instruction, state: &State) -> bool {
    match description.cfa(i.ip()) {
        Some((6, offset)) => matches!(state.registers[RBP], Stack(at) if at + offset == 8),
        Some((7, offset)) => matches!(state.registers[RSP], Stack(at) if at + offset == 8),
        Some(_) | None => true,
    }
}

/// Returns whether an instruction replaces a number in memory by one that it computes from it.
fn computes_in_memory(i: &Instruction) -> bool {
    let is_arithmetic = matches!(
        i.mnemonic(),
        Mnemonic::Add
            | Mnemonic::Sub
            | Mnemonic::Inc
            | Mnemonic::Dec
            | Mnemonic::Or
            | Mnemonic::Xor
            | Mnemonic::And
    );
    is_arithmetic && i.op0_kind() == OpKind::Memory
}

/// Returns whether an instruction uses the return slot for anything but a return.
fn uses_own(i: &Instruction, state: &State, factory: &mut InstructionInfoFactory) -> bool {
    let control = i.flow_control();
    // The return address has been taken off the stack.
    if matches!(state.registers[RSP], Stack(1..)) {
        return true;
    }
    if control == FlowControl::Return {
        return state.registers[RSP] != Stack(0) && state.load(state.registers[RSP]) == Return;
    }
    let touches = |memory: &UsedMemory| {
        let at = state.address(memory.base(), memory.index(), memory.displacement());
        // The decoder knows the start of the area that `rep movsq` accesses, but not its size.
        let size = match memory.memory_size().size() as i64 {
            0 => 8,
            size => size,
        };
        let used = !matches!(memory.access(), OpAccess::None | OpAccess::NoMemAccess);
        used && matches!(at, Stack(at) if at < 8 && at + size > 0)
    };
    if factory.info(i).used_memory().iter().any(touches) {
        return !is_fence(i) && !copies_frame(i, state);
    }
    // The instruction may load a copy of the return address from a word that the function pushed it to. A
    // `push` only makes one more copy, which is followed in turn.
    let from = match i.mnemonic() {
        Mnemonic::Pop => Some(state.registers[RSP]),
        Mnemonic::Mov if i.op0_kind() == OpKind::Register && i.op1_kind() == OpKind::Memory => {
            Some(state.operand(i))
        }
        _ => None,
    };
    if from.is_some_and(|from| state.load(from) == Return) {
        return true;
    }
    hands_out(i, state)
}

/// Returns whether an instruction passes the slot's address to another function, or stores it in memory.
/// The end of an array directly below the slot has the same address, so the instruction counts only if a
/// saved register, or nothing, lies directly below the slot.
fn hands_out(i: &Instruction, state: &State) -> bool {
    const ARGUMENTS: [Register; 6] =
        [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];
    let is_slot = |register: Register| state.get(register) == Stack(0);
    let is_certain = state.registers[RSP] == Stack(0) || state.load(Stack(-8)) == Frame(1);
    let calls = match i.flow_control() {
        FlowControl::Call | FlowControl::IndirectCall => i.near_branch_target() != i.next_ip(),
        _ => false,
    };
    let stores = i.mnemonic() == Mnemonic::Mov
        && i.op0_kind() == OpKind::Memory
        && i.op1_kind() == OpKind::Register
        // Code that switches stacks stores the stack pointer itself.
        && i.op1_register() != Register::RSP
        && state.operand(i) == Unknown
        && is_slot(i.op1_register());
    is_certain && (calls && ARGUMENTS.iter().any(|&register| is_slot(register)) || stores)
}

/// Returns whether the instruction leaves the word unchanged, as the memory fence `lock or [rsp], 0` does.
fn is_fence(i: &Instruction) -> bool {
    matches!(i.mnemonic(), Mnemonic::Or | Mnemonic::Add | Mnemonic::Sub | Mnemonic::Xor)
        && matches!(
            i.op1_kind(),
            OpKind::Immediate8 | OpKind::Immediate8to32 | OpKind::Immediate8to64 | OpKind::Immediate32
        )
        && i.immediate(1) == 0
}

/// Returns whether the instruction belongs to the prologue with which gcc aligns a frame: `lea
/// r10,[rsp+8]; and rsp,-32; push [r10-8]; push rbp`, with other instructions in between. That prologue
/// copies the return address only for debuggers; the function returns by the original. If a function does
/// use the copy, the analysis notices the instruction that loads the copy or returns by it.
fn copies_frame(i: &Instruction, state: &State) -> bool {
    i.code() == Code::Push_rm64 && matches!(state.registers[RSP], Aligned(_))
}

/// Returns a bit for each caller whose return address the instruction reads by way of a frame pointer. See
/// [`Uses::callers`].
fn uses_callers(i: &Instruction, state: &State) -> u8 {
    match state.get(i.memory_base()) {
        Frame(level)
            if i.memory_index() == Register::None
                && i.memory_displacement64() == 8
                && i.mnemonic() != Mnemonic::Lea
                && i.mnemonic() != Mnemonic::Nop =>
        {
            1 << level
        }
        _ => 0,
    }
}

/// Returns whether a function can be examined. A cold part cannot, because its return slot is that of its
/// parent.
pub(crate) fn is_examined(image: &Image, function: &Function) -> bool {
    !matches!(function.kind, FunctionKind::Cold(_))
        && image.code_at(function.address, function.size).is_some()
}
