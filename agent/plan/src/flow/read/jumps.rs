//! Finds out through which tables the indirect jumps of a function lead.
//!
//! Compilers translate a `switch` into a jump through a table, which has an entry for each value. In position-independent
//! code the entries are distances from the table, in other code they may be addresses. A `goto` through a label table and a
//! tail call through a table of functions are jumps of the same forms; only the entries tell which of them a jump is.
//!
//! ```text
//!   movsxd  rax, dword [rdx+rcx*4]             jmp     [table+rcx*8]           jmp  [rdx+rcx*8]
//!   add     rax, rdx
//!   jmp     rax
//! ```

use gprofinject_image::{ElfType, Function, Image, JumpTable};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};

/// Visits the indirect jumps of a function until `visit` returns `false`, and returns whether it has never done so. `visit` gets the jump
/// and the tables through one of which it leads; there are none if they are not known. `labels` are the sorted addresses to which
/// control may come from elsewhere than the instruction before.
pub(crate) fn each(
    image: &Image,
    f: &Function,
    labels: &[u64],
    factory: &mut InstructionInfoFactory,
    mut visit: impl FnMut(&Instruction, &[JumpTable]) -> bool,
) -> bool {
    let Some(bytes) = image.code_at(f.address, f.size) else { return true };
    let mut registers = Registers::default();
    let mut constants = None;
    for instruction in &mut Decoder::with_ip(64, bytes, f.address, DecoderOptions::NONE) {
        if labels.binary_search(&instruction.ip()).is_ok() {
            registers = Registers::default();
        }
        if instruction.flow_control() == FlowControl::IndirectBranch {
            let source = match instruction.op0_kind() {
                OpKind::Register => registers.get(instruction.op0_register()),
                OpKind::Memory => registers.entry(&instruction),
                _ => Value::Unknown,
            };
            let tables = match source {
                Value::Target(Base::Constant(table)) => vec![JumpTable::Distances(table)],
                Value::Entry(Base::Constant(table), displacement) => {
                    vec![JumpTable::Addresses(table.wrapping_add(displacement))]
                }
                Value::Target(Base::Register(base)) => constants
                    .get_or_insert_with(|| Constants::of(image, bytes, f.address))
                    .of_register(base)
                    .iter()
                    .map(|&table| JumpTable::Distances(table))
                    .collect(),
                Value::Entry(Base::Register(base), displacement) => constants
                    .get_or_insert_with(|| Constants::of(image, bytes, f.address))
                    .of_register(base)
                    .iter()
                    .map(|&table| JumpTable::Addresses(table.wrapping_add(displacement)))
                    .collect(),
                _ => Vec::new(),
            };
            if !visit(&instruction, &tables) {
                return false;
            }
        }
        registers.pass(image, &instruction, factory);
    }
    true
}

/// Returns the address of data that an instruction computes, and the register that gets it.
fn constant(image: &Image, instruction: &Instruction) -> Option<(Register, u64)> {
    let address = match instruction.code() {
        Code::Lea_r64_m if instruction.is_ip_rel_memory_operand() => instruction.ip_rel_memory_address(),
        Code::Lea_r64_m
            if instruction.memory_base() == Register::None
                && instruction.memory_index() == Register::None =>
        {
            instruction.memory_displacement64()
        }
        Code::Mov_r32_imm32 if image.elf_type == ElfType::Exec => instruction.immediate32().into(),
        Code::Mov_rm64_imm32 if image.elf_type == ElfType::Exec => instruction.immediate32to64() as u64,
        Code::Mov_r64_imm64 if image.elf_type == ElfType::Exec => instruction.immediate64(),
        _ => return None,
    };
    let is_data = (image.lo..image.hi).contains(&address) && !image.is_code(address);
    (is_data && instruction.op0_kind() == OpKind::Register)
        .then_some((instruction.op0_register().full_register(), address))
}

/// The addresses of data that a function loads into each general purpose register. A compiler loads a table's address once, before a loop
/// whose jumps use it.
struct Constants([Vec<u64>; 16]);

impl Constants {
    fn of(image: &Image, bytes: &[u8], address: u64) -> Constants {
        let mut factory = InstructionInfoFactory::new();
        let mut known = [const { Vec::new() }; 16];
        let mut has_others = [false; 16];
        for instruction in &mut Decoder::with_ip(64, bytes, address, DecoderOptions::NONE) {
            if let Some((register, table)) = constant(image, &instruction) {
                known[register.number()].push(table);
                continue;
            }
            // At the function's end, the caller's values are restored.
            let restores =
                instruction.mnemonic() == Mnemonic::Pop && is_preserved(instruction.op0_register());
            for used in factory.info(&instruction).used_registers() {
                if is_written(used.access()) && used.register().is_gpr() && !restores {
                    has_others[used.register().full_register().number()] = true;
                }
            }
        }
        for (known, has_others) in known.iter_mut().zip(has_others) {
            if has_others {
                known.clear();
            }
        }
        Constants(known)
    }

    /// Returns the addresses of which the register has one; there are none if it may have another value.
    fn of_register(&self, register: Register) -> &[u64] {
        if register.is_gpr64() { &self.0[register.number()] } else { &[] }
    }
}

/// Returns whether a called function preserves the register.
fn is_preserved(register: Register) -> bool {
    use Register::{R12, R13, R14, R15, RBP, RBX};
    matches!(register, RBX | RBP | R12 | R13 | R14 | R15)
}

fn is_written(access: OpAccess) -> bool {
    !matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::None | OpAccess::NoMemAccess)
}

/// Where the address of a table comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    /// It is this address.
    Constant(u64),
    /// It was in this register before the instructions that are followed.
    Register(Register),
}

/// What is known of the value in a register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Value {
    #[default]
    Unknown,
    /// An address of data.
    Address(u64),
    /// An entry of the table of distances whose address is in this register.
    Distance(Register),
    /// The sum of such an entry and the table's address.
    Target(Base),
    /// An entry of the table of addresses that is this many bytes after the base.
    Entry(Base, u64),
}

/// What is known of the general purpose registers.
#[derive(Default)]
struct Registers([Value; 16]);

impl Registers {
    fn get(&self, register: Register) -> Value {
        if register.is_gpr64() { self.0[register.number()] } else { Value::Unknown }
    }

    /// Returns where the address in a register comes from.
    fn base(&self, register: Register) -> Base {
        match self.get(register) {
            Value::Address(address) => Base::Constant(address),
            _ => Base::Register(register),
        }
    }

    /// Follows an instruction.
    fn pass(&mut self, image: &Image, instruction: &Instruction, factory: &mut InstructionInfoFactory) {
        let constant = constant(image, instruction);
        let result = constant.map(|(register, address)| (register, Value::Address(address)));
        let result = result.or_else(|| self.result(instruction));
        for used in factory.info(instruction).used_registers() {
            if !is_written(used.access()) || !used.register().is_gpr() {
                continue;
            }
            let written = used.register().full_register();
            for value in &mut self.0 {
                let is_of_written = match *value {
                    Value::Distance(base) => base == written,
                    Value::Target(Base::Register(base)) | Value::Entry(Base::Register(base), _) => {
                        base == written
                    }
                    _ => false,
                };
                if is_of_written {
                    *value = Value::Unknown;
                }
            }
            self.0[written.number()] = Value::Unknown;
        }
        // A call may change any register.
        if matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
            *self = Registers::default();
        }
        if let Some((register, value)) = result
            && value != Value::Distance(register)
            && register.is_gpr64()
        {
            self.0[register.number()] = value;
        }
    }

    /// Returns the entry of eight bytes that an instruction reads from a table.
    fn entry(&self, instruction: &Instruction) -> Value {
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let displacement = instruction.memory_displacement64();
        // The prefix of `notrack` is that of the segment ds.
        let is_flat = matches!(instruction.segment_prefix(), Register::None | Register::DS);
        let is_plain = is_flat && !instruction.is_ip_rel_memory_operand();
        let is_indexed = index != Register::None && instruction.memory_index_scale() == 8;
        match base {
            _ if !is_plain => Value::Unknown,
            Register::None if is_indexed => Value::Entry(Base::Constant(displacement), 0),
            _ if is_indexed && base.is_gpr64() => Value::Entry(self.base(base), displacement),
            _ => Value::Unknown,
        }
    }

    /// Returns the register to which an instruction writes one of the values that are followed.
    fn result(&self, instruction: &Instruction) -> Option<(Register, Value)> {
        let (first, second) = (instruction.op0_register(), instruction.op1_register());
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let sum = |a: Register, b: Register| {
            let of = |entry: Register, base: Register| {
                (entry.is_gpr64() && base.is_gpr64() && self.get(entry) == Value::Distance(base))
                    .then(|| Value::Target(self.base(base)))
            };
            of(a, b).or_else(|| of(b, a))
        };
        let value = match instruction.code() {
            Code::Movsxd_r64_rm32 if instruction.op1_kind() == OpKind::Memory => {
                let is_entry = base.is_gpr64()
                    && index.is_gpr64()
                    && instruction.memory_index_scale() == 4
                    && instruction.memory_displacement64() == 0;
                is_entry.then_some(Value::Distance(base))
            }
            Code::Mov_r64_rm64 if instruction.op1_kind() == OpKind::Memory => {
                Some(self.entry(instruction)).filter(|value| *value != Value::Unknown)
            }
            Code::Add_r64_rm64 | Code::Add_rm64_r64 => sum(first, second),
            Code::Lea_r64_m
                if instruction.memory_displacement64() == 0 && instruction.memory_index_scale() == 1 =>
            {
                sum(base, index)
            }
            _ => None,
        };
        value.map(|value| (first, value))
    }
}
