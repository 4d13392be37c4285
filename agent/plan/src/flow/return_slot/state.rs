//! The abstract state that the analysis of return addresses computes: the contents of registers and of
//! words on the stack before an instruction, and how instructions change them.

use crate::flow::return_slot::uses::{FARTHEST, RBP, RSP, number};
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

/// What a register or a word on the stack holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// A value that the analysis does not follow.
    Unknown,
    /// An address in the frame, in bytes above the return slot.
    Stack(i64),
    /// An address in a frame that `and rsp, -n` has aligned, in bytes above the address that resulted.
    Aligned(i64),
    /// The frame pointer of the function's caller (1), of that one's caller (2), and so on.
    Frame(u8),
    /// The function's own return address.
    Return,
}

use Value::{Aligned, Frame, Return, Stack, Unknown};

impl Value {
    /// Returns the sum of the value and a number.
    fn plus(self, n: i64) -> Value {
        match self {
            Stack(at) => Stack(at.wrapping_add(n)),
            Aligned(at) => Aligned(at.wrapping_add(n)),
            _ => Unknown,
        }
    }
}

/// The known values before an instruction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct State {
    /// What each general register holds, by its number.
    pub(crate) registers: [Value; 16],
    /// Words on the stack with known contents: address and contents.
    pub(crate) words: Vec<(Value, Value)>,
}

impl State {
    /// Returns the state at a function's entry.
    pub(crate) fn entry() -> State {
        let mut state = State { registers: [Unknown; 16], words: Vec::new() };
        state.registers[RSP] = Stack(0);
        state.registers[RBP] = Frame(1);
        state.words.push((Stack(0), Return));
        state
    }

    /// Returns what a register holds.
    pub(crate) fn get(&self, register: Register) -> Value {
        number(register).map_or(Unknown, |n| self.registers[n])
    }

    /// Notes that a register holds a value, or that a part of it has been overwritten.
    fn set(&mut self, register: Register, value: Value) {
        if let Some(n) = number(register.full_register()) {
            self.registers[n] = if number(register).is_some() { value } else { Unknown };
        }
    }

    /// Returns what the word at an address holds.
    pub(crate) fn load(&self, at: Value) -> Value {
        match at {
            Frame(level) if level < FARTHEST => Frame(level + 1),
            _ => self.words.iter().find(|word| word.0 == at).map_or(Unknown, |word| word.1),
        }
    }

    /// Notes that `size` bytes at an address are overwritten by a value.
    fn store(&mut self, at: Value, size: i64, value: Value) {
        /// The number of words that a state can hold. No known frame needs more.
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

    /// Notes a push.
    pub(crate) fn push(&mut self, value: Value) {
        let at = self.registers[RSP].plus(-8);
        self.registers[RSP] = at;
        self.store(at, 8, value);
    }

    /// Notes a pop, and returns the popped value.
    fn pop(&mut self) -> Value {
        let at = self.registers[RSP];
        self.registers[RSP] = at.plus(8);
        self.load(at)
    }

    /// Keeps only what both states agree on. Returns whether that is less than this state held before.
    pub(crate) fn meet(&mut self, other: &State) -> bool {
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

    /// Returns the address of an operand in memory.
    pub(crate) fn address(&self, base: Register, index: Register, displacement: u64) -> Value {
        match (self.get(base), index) {
            (Frame(level), Register::None) if displacement == 0 => Frame(level),
            (value, Register::None) => value.plus(displacement as i64),
            _ => Unknown,
        }
    }

    /// Returns the address of the instruction's operand in memory.
    pub(crate) fn operand(&self, i: &Instruction) -> Value {
        self.address(i.memory_base(), i.memory_index(), i.memory_displacement64())
    }

    /// Applies an instruction after which control continues with the next one.
    pub(crate) fn step(&mut self, i: &Instruction, factory: &mut InstructionInfoFactory) {
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

    /// Applies an instruction of any other kind: everything that it writes becomes unknown.
    pub(crate) fn forget(&mut self, i: &Instruction, factory: &mut InstructionInfoFactory) {
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

    /// Applies the effects of a call that has returned: the caller-saved registers become unknown.
    pub(crate) fn called(&mut self) {
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

/// Returns whether the second operand is an immediate operand of a 64-bit instruction.
fn is_immediate(i: &Instruction) -> bool {
    matches!(i.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64)
}

/// Returns whether the access may write.
fn writes(access: OpAccess) -> bool {
    !matches!(access, OpAccess::None | OpAccess::NoMemAccess | OpAccess::Read | OpAccess::CondRead)
}
