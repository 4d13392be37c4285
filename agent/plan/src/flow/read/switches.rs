//! Finds out whether all indirect jumps of a function are those of a `switch` and therefore stay in the function.
//!
//! Compilers translate a `switch` into a jump through a table, which has an entry for each value. In position-independent
//! code the entries are distances from the table, in other code they may be addresses:
//!
//! ```text
//!   movsxd  rax, dword [rdx+rcx*4]             jmp     [table+rcx*8]
//!   add     rax, rdx
//!   jmp     rax
//! ```
//!
//! The bounds of the index are not followed, so the number of entries is not known. The entries at the start of the table
//! must lead into the function. The first one that does not is taken for the end of the table, unless it leads to the cold
//! part or to the first instruction of a function: then it may be an entry, by which hand-written code makes a tail call. A
//! table of functions, by which a function may make a tail call, begins with an entry that leads out of the function.

use gprofinject_image::{Function, FunctionKind, Image};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind,
    Register,
};

/// The largest number of entries that are read of one table.
const MOST: u64 = 1 << 14;

/// Returns whether every indirect jump of the function is that of a `switch`. `tables` has the addresses of data that the
/// function computes or jumps through.
pub(crate) fn stay(
    image: &Image,
    f: &Function,
    tables: &[u64],
    factory: &mut InstructionInfoFactory,
) -> bool {
    let Some(bytes) = image.code_at(f.address, f.size) else { return false };
    let mut labels = Vec::new();
    let mut has_distances = false;
    for &table in tables {
        match Table::read(image, f, |i| distance(image, table, i), &mut labels) {
            Table::Inside => has_distances = true,
            Table::Outside => return false,
            Table::None => {}
        }
    }
    for instruction in &mut Decoder::with_ip(64, bytes, f.address, DecoderOptions::NONE) {
        if instruction.is_invalid() {
            return false;
        }
        if instruction.op0_kind() == OpKind::NearBranch64 {
            labels.push(instruction.near_branch_target());
        }
    }
    labels.sort_unstable();
    let mut registers = Registers::default();
    for instruction in &mut Decoder::with_ip(64, bytes, f.address, DecoderOptions::NONE) {
        // Control may come from elsewhere.
        if labels.binary_search(&instruction.ip()).is_ok() {
            registers = Registers::default();
        }
        if instruction.flow_control() == FlowControl::IndirectBranch {
            let is_switch = match instruction.op0_kind() {
                OpKind::Register => match registers.get(instruction.op0_register()) {
                    Value::Target => has_distances,
                    Value::Entry(table) => leads_inside(image, f, table),
                    _ => false,
                },
                OpKind::Memory => address_table(&instruction).is_some_and(|t| leads_inside(image, f, t)),
                _ => false,
            };
            if !is_switch {
                return false;
            }
        }
        registers.pass(&instruction, factory);
    }
    true
}

/// What a table of jump targets contains.
enum Table {
    /// Its entries lead into the function.
    Inside,
    /// Some entry leads to code outside of the function.
    Outside,
    /// It is no table of jump targets.
    None,
}

impl Table {
    /// Reads a table, and adds the addresses to which it leads to `labels`.
    fn read(image: &Image, f: &Function, entry: impl Fn(u64) -> Option<u64>, labels: &mut Vec<u64>) -> Table {
        let is_inside = |target: &u64| (f.address + 1..f.address + f.size).contains(target);
        let mut targets = (0..MOST).map_while(&entry);
        let Some(first) = targets.next() else { return Table::None };
        if !is_inside(&first) {
            return if image.is_code(first) { Table::Outside } else { Table::None };
        }
        labels.push(first);
        for target in targets {
            if is_inside(&target) {
                labels.push(target);
                continue;
            }
            // Compilers let impossible cases lead to the function's end.
            if target == f.address + f.size {
                continue;
            }
            let may_be_entry = |i: usize| {
                let function = &image.functions[i];
                matches!(function.kind, FunctionKind::Cold(_)) || function.address == target
            };
            return if image.function_at(target).is_some_and(may_be_entry) {
                Table::Outside
            } else {
                Table::Inside
            };
        }
        Table::Inside
    }
}

/// Returns the target of an entry of a table of distances.
fn distance(image: &Image, table: u64, entry: u64) -> Option<u64> {
    let &[a, b, c, d] = image.data_at(table.wrapping_add(4 * entry), 4)? else { return None };
    Some(table.wrapping_add(i32::from_le_bytes([a, b, c, d]) as u64))
}

/// Returns whether the entries of a table of addresses lead into the function.
fn leads_inside(image: &Image, f: &Function, table: u64) -> bool {
    let entry = |i: u64| {
        let word = image.data_at(table.wrapping_add(8 * i), 8)?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    };
    matches!(Table::read(image, f, entry, &mut Vec::new()), Table::Inside)
}

/// Returns the address of the table from which an instruction reads an entry of eight bytes.
fn address_table(instruction: &Instruction) -> Option<u64> {
    let is_indexed = instruction.memory_base() == Register::None
        && instruction.memory_index() != Register::None
        && instruction.memory_index_scale() == 8
        && instruction.segment_prefix() == Register::None;
    is_indexed.then_some(instruction.memory_displacement64())
}

/// What is known of the value in a register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Value {
    #[default]
    Unknown,
    /// An entry of the table of distances whose address is in another register.
    Distance(Register),
    /// The sum of such an entry and the table's address.
    Target,
    /// An entry of the table of addresses at this address.
    Entry(u64),
}

/// What is known of the general purpose registers.
#[derive(Default)]
struct Registers([Value; 16]);

impl Registers {
    fn get(&self, register: Register) -> Value {
        if register.is_gpr64() { self.0[register.number()] } else { Value::Unknown }
    }

    /// Follows an instruction.
    fn pass(&mut self, instruction: &Instruction, factory: &mut InstructionInfoFactory) {
        let result = self.result(instruction);
        for used in factory.info(instruction).used_registers() {
            let is_read_only = matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None);
            if is_read_only || !used.register().is_gpr() {
                continue;
            }
            let written = used.register().full_register();
            for value in &mut self.0 {
                if *value == Value::Distance(written) {
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
        {
            self.0[register.number()] = value;
        }
    }

    /// Returns the register to which an instruction writes one of the values that are followed.
    fn result(&self, instruction: &Instruction) -> Option<(Register, Value)> {
        let (first, second) = (instruction.op0_register(), instruction.op1_register());
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let is_sum = |a: Register, b: Register| {
            a.is_gpr64()
                && b.is_gpr64()
                && (self.get(a) == Value::Distance(b) || self.get(b) == Value::Distance(a))
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
                address_table(instruction).map(Value::Entry)
            }
            Code::Add_r64_rm64 | Code::Add_rm64_r64 => is_sum(first, second).then_some(Value::Target),
            Code::Lea_r64_m
                if instruction.memory_displacement64() == 0 && instruction.memory_index_scale() == 1 =>
            {
                is_sum(base, index).then_some(Value::Target)
            }
            _ => None,
        };
        value.map(|value| (first, value))
    }
}

#[cfg(test)]
mod tests;
