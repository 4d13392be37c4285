//! Follows return addresses, frame pointers and stack addresses through all ways of one function.
//!
//! The values are found first, until nothing changes any more; only then is each instruction judged. So a loop that goes
//! from frame to frame yields no value, rather than the one of its first round.

use super::{FARTHEST, RBP, RSP, Uses, is_examined, number};
use gprofinject_image::frames::unwind::Cfas;
use gprofinject_image::{Function, Image};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register, UsedMemory,
};

/// What a register or a word of the stack holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Unknown,
    /// An address in the frame: so many bytes above the return slot.
    Stack(i64),
    /// An address in a frame that has been aligned by `and rsp, -n`: so many bytes above the address that came of it.
    Aligned(i64),
    /// The frame pointer of the function's caller (1), of that one's caller (2), and so on.
    Frame(u8),
    /// The function's own return address.
    Return,
}

use Value::{Aligned, Frame, Return, Stack, Unknown};

impl Value {
    fn plus(self, n: i64) -> Value {
        match self {
            Stack(at) => Stack(at.wrapping_add(n)),
            Aligned(at) => Aligned(at.wrapping_add(n)),
            _ => Unknown,
        }
    }
}

/// What is known before an instruction.
#[derive(Clone, Debug, PartialEq)]
struct State {
    registers: [Value; 16],
    /// Words of the stack with known contents, by their addresses.
    words: Vec<(Value, Value)>,
}

impl State {
    fn entry() -> State {
        let mut state = State { registers: [Unknown; 16], words: Vec::new() };
        state.registers[RSP] = Stack(0);
        state.registers[RBP] = Frame(1);
        state.words.push((Stack(0), Return));
        state
    }

    fn get(&self, register: Register) -> Value {
        number(register).map_or(Unknown, |n| self.registers[n])
    }

    fn set(&mut self, register: Register, value: Value) {
        if let Some(n) = number(register.full_register()) {
            self.registers[n] = if number(register).is_some() { value } else { Unknown };
        }
    }

    fn load(&self, at: Value) -> Value {
        match at {
            Frame(level) if level < FARTHEST => Frame(level + 1),
            _ => self.words.iter().find(|word| word.0 == at).map_or(Unknown, |word| word.1),
        }
    }

    fn store(&mut self, at: Value, size: i64, value: Value) {
        /// More words than that have not been seen in any frame.
        const MOST: usize = 64;
        let overlaps = |word: Value| match (word, at) {
            (Stack(word), Stack(at)) | (Aligned(word), Aligned(at)) => word < at + size && at < word + 8,
            _ => false,
        };
        self.words.retain(|word| !overlaps(word.0));
        if value != Unknown && at != Unknown && size == 8 && self.words.len() < MOST {
            self.words.push((at, value));
        }
    }

    fn push(&mut self, value: Value) {
        let at = self.registers[RSP].plus(-8);
        self.registers[RSP] = at;
        self.store(at, 8, value);
    }

    fn pop(&mut self) -> Value {
        let at = self.registers[RSP];
        self.registers[RSP] = at.plus(8);
        self.load(at)
    }

    /// Keeps what both know. True: that is less than before.
    fn meet(&mut self, other: &State) -> bool {
        let mut changed = false;
        for (own, theirs) in self.registers.iter_mut().zip(&other.registers) {
            if own != theirs && *own != Unknown {
                (*own, changed) = (Unknown, true);
            }
        }
        let before = self.words.len();
        self.words.retain(|word| other.words.contains(word));
        changed || self.words.len() != before
    }

    /// The address of an operand in memory.
    fn address(&self, base: Register, index: Register, displacement: u64) -> Value {
        match (self.get(base), index) {
            (Frame(level), Register::None) if displacement == 0 => Frame(level),
            (value, Register::None) => value.plus(displacement as i64),
            _ => Unknown,
        }
    }

    fn operand(&self, i: &Instruction) -> Value {
        self.address(i.memory_base(), i.memory_index(), i.memory_displacement64())
    }

    /// What is known after an instruction that goes on to the next one.
    fn step(&mut self, i: &Instruction, factory: &mut InstructionInfoFactory) {
        let is_word = i.memory_size().size() == 8;
        match i.mnemonic() {
            Mnemonic::Push => {
                let value = match i.op0_kind() {
                    OpKind::Register => self.get(i.op0_register()),
                    OpKind::Memory if is_word => self.load(self.operand(i)),
                    _ => Unknown,
                };
                self.push(value);
            }
            Mnemonic::Pop if i.op0_kind() == OpKind::Register => {
                let value = self.pop();
                self.set(i.op0_register(), value);
            }
            Mnemonic::Leave => {
                self.registers[RSP] = self.registers[RBP];
                self.registers[RBP] = self.pop();
            }
            Mnemonic::Mov if i.op0_kind() == OpKind::Register && i.op1_kind() == OpKind::Register => {
                self.set(i.op0_register(), self.get(i.op1_register()));
            }
            Mnemonic::Mov if i.op0_kind() == OpKind::Register && i.op1_kind() == OpKind::Memory => {
                let value = if is_word { self.load(self.operand(i)) } else { Unknown };
                self.set(i.op0_register(), value);
            }
            Mnemonic::Mov if i.op0_kind() == OpKind::Memory && i.op1_kind() == OpKind::Register => {
                let value = self.get(i.op1_register());
                self.store(self.operand(i), i.memory_size().size() as i64, value);
            }
            Mnemonic::Xchg if i.op0_kind() == OpKind::Register && i.op1_kind() == OpKind::Register => {
                let (a, b) = (self.get(i.op0_register()), self.get(i.op1_register()));
                self.set(i.op0_register(), b);
                self.set(i.op1_register(), a);
            }
            Mnemonic::Lea => self.set(i.op0_register(), self.operand(i)),
            Mnemonic::Add | Mnemonic::Sub if is_immediate(i) && number(i.op0_register()).is_some() => {
                let n = i.immediate(1) as i64;
                let n = if i.mnemonic() == Mnemonic::Add { n } else { n.wrapping_neg() };
                self.set(i.op0_register(), self.get(i.op0_register()).plus(n));
            }
            Mnemonic::And if i.op0_register() == Register::RSP && is_immediate(i) => {
                self.words.retain(|word| !matches!(word.0, Aligned(_)));
                self.registers[RSP] = Aligned(0);
            }
            _ => self.forget(i, factory),
        }
    }

    /// After any other instruction: what it writes is unknown.
    fn forget(&mut self, i: &Instruction, factory: &mut InstructionInfoFactory) {
        let rsp = self.registers[RSP];
        let info = factory.info(i);
        for memory in info.used_memory() {
            if writes(memory.access()) {
                let at = self.address(memory.base(), memory.index(), memory.displacement());
                self.store(at, memory.memory_size().size() as i64, Unknown);
            }
        }
        for used in info.used_registers() {
            if writes(used.access()) {
                self.set(used.register(), Unknown);
            }
        }
        let moves = i.is_stack_instruction();
        if moves {
            self.registers[RSP] = rsp.plus(i.stack_pointer_increment().into());
        }
    }

    /// After a call that has come back.
    fn called(&mut self) {
        const CLOBBERED: [Register; 9] = [
            Register::RAX,
            Register::RCX,
            Register::RDX,
            Register::RSI,
            Register::RDI,
            Register::R8,
            Register::R9,
            Register::R10,
            Register::R11,
        ];
        for register in CLOBBERED {
            self.set(register, Unknown);
        }
    }
}

fn is_immediate(i: &Instruction) -> bool {
    matches!(i.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64)
}

fn writes(access: OpAccess) -> bool {
    !matches!(access, OpAccess::None | OpAccess::NoMemAccess | OpAccess::Read | OpAccess::CondRead)
}

/// The instructions of a function, and what is known before each.
struct Ways<'i> {
    instructions: &'i [Instruction],
    states: Vec<Option<State>>,
    work: Vec<usize>,
    /// Behind an indirect jump, which most often is a switch.
    switch: Option<State>,
}

impl Ways<'_> {
    fn at(&self, address: u64) -> Option<usize> {
        self.instructions.binary_search_by_key(&address, Instruction::ip).ok()
    }

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
                    // A subroutine within the function, or a way to learn one's own address.
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

    /// Code that no branch leads to: the cases of a switch, and landing pads.
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

/// What the unwind table tells about a function's frames.
struct Description<'i, 'd> {
    image: &'i Image<'d>,
    /// Of the frame description that the function begins with: most often the only one.
    cfas: Option<Cfas>,
}

impl Description<'_, '_> {
    fn cfa(&self, address: u64) -> Option<(u16, i64)> {
        match &self.cfas {
            Some(cfas) if cfas.covers(address) => cfas.at(address),
            _ => self.image.cfa(address),
        }
    }
}

/// What the unwind table tells about an instruction.
fn described(description: &Description, address: u64) -> Option<State> {
    let mut state = State { registers: [Unknown; 16], words: vec![(Stack(0), Return)] };
    match description.cfa(address)? {
        (6, offset) => state.registers[RBP] = Stack(8 - offset),
        (7, offset) => state.registers[RSP] = Stack(8 - offset),
        _ => return None,
    }
    Some(state)
}

/// Examines a function that [`super::Watch`] finds suspicious.
pub(crate) fn examine(image: &Image, function: &Function, factory: &mut InstructionInfoFactory) -> Uses {
    let mut uses = Uses::default();
    if !is_examined(image, function) {
        return uses;
    }
    let bytes = image.code_at(function.address, function.size).unwrap_or_default();
    let decoder = Decoder::with_ip(64, bytes, function.address, DecoderOptions::NONE);
    let instructions: Vec<Instruction> = decoder.into_iter().take_while(|i| !i.is_invalid()).collect();
    let states = vec![None; instructions.len()];
    let mut ways = Ways { instructions: &instructions, states, work: Vec::new(), switch: None };
    ways.reach(0, State::entry());
    ways.run(factory);
    let description = Description { image, cfas: image.cfas(function.address) };
    ways.run_unreached(&description, factory);
    // A function whose description never says that the stack pointer has moved, though it has, was described by
    // somebody who did not care. To look at the whole description takes long, and few functions need it.
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
            uses.callers |= callers;
        }
    }
    uses
}

/// Whether the unwind table, where there is one, says the same of the frame as the values that were followed. They
/// differ behind a call that never comes back.
fn agrees(description: &Description, i: &Instruction, state: &State) -> bool {
    match description.cfa(i.ip()) {
        Some((6, offset)) => matches!(state.registers[RBP], Stack(at) if at + offset == 8),
        Some((7, offset)) => matches!(state.registers[RSP], Stack(at) if at + offset == 8),
        Some(_) | None => true,
    }
}

/// Whether an instruction uses the return slot otherwise than to return.
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
        // How much `rep movsq` moves is not known, but that it begins there.
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
    // A copy of the return address is taken from a word that it was pushed to. One that is pushed once more is followed.
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

/// Whether an instruction hands the slot's address to somebody: another function, or memory. The end of an array that
/// lies directly below the slot has the same address, so that is only believed where something else lies there: a
/// saved register.
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
        // The stack pointer itself is put away by what switches stacks.
        && i.op1_register() != Register::RSP
        && state.operand(i) == Unknown
        && is_slot(i.op1_register());
    is_certain && (calls && ARGUMENTS.iter().any(|&register| is_slot(register)) || stores)
}

/// `lock or [rsp], 0`: a memory fence, which leaves the word as it is.
fn is_fence(i: &Instruction) -> bool {
    matches!(i.mnemonic(), Mnemonic::Or | Mnemonic::Add | Mnemonic::Sub | Mnemonic::Xor)
        && matches!(
            i.op1_kind(),
            OpKind::Immediate8 | OpKind::Immediate8to32 | OpKind::Immediate8to64 | OpKind::Immediate32
        )
        && i.immediate(1) == 0
}

/// The prologue by which gcc aligns a frame: `lea r10,[rsp+8]; and rsp,-32; push [r10-8]; push rbp`, with other
/// instructions in between. The copy of the return address is for debuggers; the function returns by the original. A
/// function that uses the copy after all is found where it loads it or returns by it.
fn copies_frame(i: &Instruction, state: &State) -> bool {
    i.code() == Code::Push_rm64 && matches!(state.registers[RSP], Aligned(_))
}

/// Reads of the return addresses of callers, by way of their frame pointers.
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
